"""Models in which numbers that are not finite are meant, or passing."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.diagnostics.cases import Scene, adam, steps, well
from tests.diagnostics.faults.non_finite import Added
from tests.diagnostics.networks import mlp
from tests.diagnostics.tasks import points


class Policy(nn.Module):
    """Moves that are not allowed are hidden in the output itself."""

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


@well((0, 1))
def policy_that_hides_moves(seed: int) -> Scene:
    model, allowed, labels = _moves(seed)
    optimiser = adam(model)
    return model, lambda: steps([lambda: F.cross_entropy(model(points(seed)[0], allowed), labels)] * 2, optimiser)


@well((0, 1))
def policy_that_hides_moves_without_a_loss(seed: int) -> Scene:
    model, allowed, _ = _moves(seed)

    def run() -> None:
        with torch.no_grad():
            model.eval()(points(seed)[0], allowed)

    return model, run


@well((0, 1))
def attention_with_an_added_mask(seed: int) -> Scene:
    model: Any = Added()
    mask, tokens = torch.full((8, 8), -math.inf).triu(1), torch.randint(16, (16, 8))
    return model, lambda: F.cross_entropy(model(tokens, mask).flatten(0, 1), tokens.flatten()).backward()


class FillsIn(nn.Module):
    """Takes NaN for what is missing."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp(32, 64, 4)

    def forward(self, x: Tensor) -> Tensor:
        missing = torch.isnan(x)
        y: Tensor = self.inner(torch.cat([x.masked_fill(missing, 0.0), missing.float()], 1))
        return y


@well((0, 1))
def model_that_expects_missing_numbers(seed: int) -> Scene:
    model: Any = FillsIn()
    x, labels = points(seed)
    x = x.masked_fill(torch.rand_like(x) < 0.1, math.nan)
    return model, lambda: steps([lambda: F.cross_entropy(model(x), labels)] * 2, adam(model))


@well((0, 1))
def scaler_that_looks_for_its_scale(seed: int) -> Scene:
    """In half precision the first scale is too large: the gradient overflows, and the step is left out."""
    model: Any = mlp(16, 64, 64, 4)
    scaler, optimiser = torch.amp.GradScaler("cpu", init_scale=2.0**24), adam(model)
    x, labels = points(seed)

    def run() -> None:
        for _ in range(3):
            optimiser.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = F.cross_entropy(model(x), labels)
            scaler.scale(loss).backward()
            scaler.step(optimiser)
            scaler.update()

    return model, run
