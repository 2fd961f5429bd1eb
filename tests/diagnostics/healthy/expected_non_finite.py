"""Models in which NaN or Inf is intended or temporary."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.diagnostics.cases import Setup, adamw, healthy, run_steps
from tests.diagnostics.faults.non_finite import AdditiveMaskModel
from tests.diagnostics.networks import mlp
from tests.diagnostics.tasks import points


class Policy(nn.Module):
    """Illegal moves get a logit of -inf."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, width), nn.Linear(width, 6)

    def forward(self, x: Tensor, allowed: Tensor) -> Tensor:
        y: Tensor = self.last(torch.relu(self.first(x))).masked_fill(~allowed, -math.inf)
        return y


def _moves(seed: int) -> tuple[Any, Tensor, Tensor]:
    allowed = torch.rand(64, 6) > 0.3
    allowed[:, :4] = True
    return Policy((32, 48)[seed % 2]), allowed, points(seed)[1]


@healthy((0, 1))
def masked_policy_logits(seed: int) -> Setup:
    model, allowed, labels = _moves(seed)
    optimizer = adamw(model)
    return model, lambda: run_steps([lambda: F.cross_entropy(model(points(seed)[0], allowed), labels)] * 2, optimizer)


@healthy((0, 1))
def masked_policy_logits_forward_only(seed: int) -> Setup:
    model, allowed, _ = _moves(seed)

    def run() -> None:
        with torch.no_grad():
            model.eval()(points(seed)[0], allowed)

    return model, run


@healthy((0, 1))
def attention_with_additive_mask(seed: int) -> Setup:
    model: Any = AdditiveMaskModel()
    mask, tokens = torch.full((8, 8), -math.inf).triu(1), torch.randint(16, (16, 8))
    return model, lambda: F.cross_entropy(model(tokens, mask).flatten(0, 1), tokens.flatten()).backward()


class Imputer(nn.Module):
    """Treats NaN as a missing value."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp(32, 64, 4)

    def forward(self, x: Tensor) -> Tensor:
        missing = torch.isnan(x)
        y: Tensor = self.inner(torch.cat([x.masked_fill(missing, 0.0), missing.float()], 1))
        return y


@healthy((0, 1))
def nan_inputs_imputed_by_model(seed: int) -> Setup:
    model: Any = Imputer()
    x, labels = points(seed)
    x = x.masked_fill(torch.rand_like(x) < 0.1, math.nan)
    return model, lambda: run_steps([lambda: F.cross_entropy(model(x), labels)] * 2, adamw(model))


@healthy((0, 1))
def grad_scaler_finding_its_scale(seed: int) -> Setup:
    """The initial loss scale is too large for float16: gradients overflow and the scaler skips the step."""
    model: Any = mlp(16, 64, 64, 4)
    scaler, optimizer = torch.amp.GradScaler("cpu", init_scale=2.0**24), adamw(model)
    x, labels = points(seed)

    def run() -> None:
        for _ in range(3):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = F.cross_entropy(model(x), labels)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    return model, run
