"""Legitimate uses of probabilities in models and losses: gates, experts, distillation."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.diagnostics.cases import Objective, Setup, healthy, two_training_steps
from tests.diagnostics.networks import mlp
from tests.diagnostics.tasks import classify, points


class Mixture(nn.Module):
    """Experts whose logits are mixed by a softmax and scaled by a gate."""

    def __init__(self, experts: int = 3) -> None:
        super().__init__()
        self.router, self.gate = nn.Linear(16, experts), nn.Linear(16, 4)
        self.experts = nn.ModuleList(mlp(16, 32, 4) for _ in range(experts))

    def forward(self, x: Tensor) -> Tensor:
        weights = F.softmax(self.router(x), dim=-1)
        mixed = torch.stack([expert(x) for expert in self.experts], dim=-1) @ weights[..., None]
        return mixed.squeeze(-1) * torch.sigmoid(self.gate(x))


@healthy()
def mixture_of_experts(seed: int) -> Setup:
    model: Any = Mixture()
    return two_training_steps(model, classify(model), after=60 * seed)


@healthy()
def distillation_with_soft_targets(seed: int) -> Setup:
    """The targets are a softmax, but the logits are not. A softmax of the logits is also computed on the side."""
    model, teacher = mlp(16, 64, 4), mlp(16, 64, 4)

    def batch(number: int) -> Objective:
        x, _ = points(number)

        def objective() -> Tensor:
            logits = model(x)
            confidence = F.softmax(logits, dim=-1).max()
            return F.cross_entropy(logits, F.softmax(teacher(x), dim=-1)) + 0 * confidence

        return objective

    return two_training_steps(model, batch, after=60 * seed)


@healthy()
def log_of_mixed_probabilities(seed: int) -> Setup:
    """Log-probabilities are valid logits."""
    model = nn.ModuleList(mlp(16, 32, 4) for _ in range(2))

    def batch(number: int) -> Objective:
        x, labels = points(number)

        def objective() -> Tensor:
            probabilities = torch.stack([F.softmax(part(x), dim=-1) for part in model]).mean(0)
            return F.cross_entropy(probabilities.log(), labels)

        return objective

    return two_training_steps(model, batch, after=60 * seed)


@healthy()
def in_place_log_of_probabilities(seed: int) -> Setup:
    model: Any = mlp(16, 32, 4)

    def batch(number: int) -> Objective:
        x, labels = points(number)
        return lambda: F.cross_entropy(F.softmax(model(x), dim=-1).clone().log_(), labels)

    return two_training_steps(model, batch, after=60 * seed)
