"""Values that go on while the graph of autograd does not."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.diagnostics.cases import Setup, adamw, fault, run_steps, two_training_steps
from tests.diagnostics.networks import mlp
from tests.diagnostics.tasks import classify, points


def _trained_by(model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor]) -> Setup:
    """Two steps with a loss of the model's output and the labels. An error of backward() ends them."""

    def run() -> None:
        x, labels = points(0)
        try:
            run_steps([lambda: loss(model(x), labels)] * 2, adamw(model))
        except RuntimeError as error:
            raise ValueError from error

    return model, run


@fault("graph-cut", "")
def error_rate_as_loss() -> Setup:
    """backward() raises an error: a comparison has no gradient."""
    return _trained_by(mlp(16, 32, 4), lambda y, labels: (y.argmax(1) != labels).float().mean())


@fault("graph-cut", "")
def loss_made_a_new_leaf() -> Setup:
    """backward() raises no error, but only the new leaf gets a gradient."""

    def loss(y: Tensor, labels: Tensor) -> Tensor:
        return torch.tensor(F.cross_entropy(y, labels).item(), requires_grad=True)

    return _trained_by(mlp(16, 32, 4), loss)


class TwoParts(nn.Module):
    """Something cuts the graph between two parts."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last, self.between = mlp(16, 32, 16), mlp(16, 32, 4), between

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.between(self.first(x)))
        return y


def _cut_by(between: Callable[[Tensor], Tensor]) -> Setup:
    model: Any = TwoParts(between)
    return two_training_steps(model, classify(model))


@fault("no-gradient", "first")
def features_through_numpy() -> Setup:
    return _cut_by(lambda y: torch.from_numpy(np.tanh(y.detach().numpy())))


@fault("no-gradient", "first")
def features_through_a_python_list() -> Setup:
    return _cut_by(lambda y: torch.tensor(y.tolist()))


@fault("no-gradient", "first")
def features_as_a_new_parameter() -> Setup:
    return _cut_by(nn.Parameter)


@fault("no-gradient", "first")
def features_rounded() -> Setup:
    """The gradient arrives, but all of it is zero."""
    return _cut_by(lambda y: (8 * y).round() / 8)


@fault("no-gradient", "first")
def features_copied_under_no_grad() -> Setup:
    def copied(y: Tensor) -> Tensor:
        kept = torch.zeros_like(y)
        with torch.no_grad():
            kept[:] = y
        return kept

    return _cut_by(copied)


class HardRouter(nn.Module):
    """Chooses one expert per sample by the index of the largest score, which has no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(16, 3), nn.ModuleList(mlp(16, 16, 4) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        outputs = torch.stack([expert(x) for expert in self.experts], 1)
        y: Tensor = outputs[torch.arange(len(x)), self.router(x).argmax(-1)]
        return y


@fault("no-gradient", "router")
def router_by_argmax() -> Setup:
    model: Any = HardRouter()
    return two_training_steps(model, classify(model))


class FrozenInForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features, self.head = mlp(16, 32, 32), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        self.features.requires_grad_(False)
        y: Tensor = self.head(F.relu(self.features(x)))
        return y


@fault("no-gradient", "features")
def frozen_in_forward() -> Setup:
    model: Any = FrozenInForward()
    return two_training_steps(model, classify(model))


class ForgottenBranch(nn.Module):
    """Concatenates the first branch twice."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.head = mlp(16, 32, 16), mlp(16, 32, 16), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        left, _right = self.left(x), self.right(x)
        y: Tensor = self.head(F.relu(torch.cat([left, left], 1)))
        return y


@fault("no-gradient", "right")
def branch_computed_and_not_used() -> Setup:
    model: Any = ForgottenBranch()
    return model, lambda: run_steps((classify(model)(i) for i in range(6)), adamw(model))


class SampledCode(nn.Module):
    """A variational autoencoder that draws its code with sample(), where rsample() has a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.heads, self.decoder = mlp(16, 32, 32), nn.Linear(32, 8), mlp(4, 32, 16)

    def forward(self, x: Tensor) -> Tensor:
        mean, log_variance = self.heads(F.relu(self.body(x))).chunk(2, 1)
        code = torch.distributions.Normal(mean, (log_variance / 2).exp()).sample()
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1).mean()
        loss: Tensor = F.mse_loss(self.decoder(code), x) + divergence
        return loss


@fault("graph-cut", "heads")
def code_drawn_without_reparametrization() -> Setup:
    model: Any = SampledCode()
    return model, lambda: run_steps([lambda: model(points(0)[0])] * 3, adamw(model))
