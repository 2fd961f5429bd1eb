"""Probabilities inside of models, and beside their losses: gates, experts, attention that pools, teachers."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.diagnostics.cases import Objective, Scene, running, well
from tests.diagnostics.networks import mlp
from tests.diagnostics.tasks import classify, points


class Mixture(nn.Module):
    """Experts whose logits are mixed by a softmax, and then scaled by a gate."""

    def __init__(self, experts: int = 3) -> None:
        super().__init__()
        self.router, self.gate = nn.Linear(16, experts), nn.Linear(16, 4)
        self.experts = nn.ModuleList(mlp(16, 32, 4) for _ in range(experts))

    def forward(self, x: Tensor) -> Tensor:
        shares = F.softmax(self.router(x), dim=-1)
        mixed = torch.stack([expert(x) for expert in self.experts], dim=-1) @ shares[..., None]
        return mixed.squeeze(-1) * torch.sigmoid(self.gate(x))


@well()
def experts_that_a_softmax_mixes(seed: int) -> Scene:
    model: Any = Mixture()
    return running(model, classify(model), trained=60 * seed)


@well()
def student_of_a_teachers_probabilities(seed: int) -> Scene:
    """The targets are a softmax; what the loss is given as logits is none. The chances are read beside it."""
    model, teacher = mlp(16, 64, 4), mlp(16, 64, 4)

    def batch(number: int) -> Objective:
        x, _ = points(number)

        def objective() -> Tensor:
            logits = model(x)
            sure = F.softmax(logits, dim=-1).max()
            return F.cross_entropy(logits, F.softmax(teacher(x), dim=-1)) + 0 * sure

        return objective

    return running(model, batch, trained=60 * seed)


@well()
def mixture_of_chances_given_as_logarithms(seed: int) -> Scene:
    """The logarithm of probabilities is as good as logits."""
    model = nn.ModuleList(mlp(16, 32, 4) for _ in range(2))

    def batch(number: int) -> Objective:
        x, labels = points(number)

        def objective() -> Tensor:
            chances = torch.stack([F.softmax(part(x), dim=-1) for part in model]).mean(0)
            return F.cross_entropy(chances.log(), labels)

        return objective

    return running(model, batch, trained=60 * seed)


@well()
def chances_that_become_logarithms_in_place(seed: int) -> Scene:
    model: Any = mlp(16, 32, 4)

    def batch(number: int) -> Objective:
        x, labels = points(number)
        return lambda: F.cross_entropy(F.softmax(model(x), dim=-1).clone().log_(), labels)

    return running(model, batch, trained=60 * seed)
