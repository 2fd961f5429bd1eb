"""Plain networks on points: MLPs of several depths and activations, autoencoders, frozen parts, eval only."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from tests.diagnostics.cases import Scene, adam, running, steps, well
from tests.diagnostics.networks import he, mlp
from tests.diagnostics.tasks import classify, points, restore

WIDTHS = (32, 64, 128)


@well((0, 1, 2))
def mlp_at_the_start(seed: int) -> Scene:
    model: Any = mlp(16, WIDTHS[seed], WIDTHS[seed], 4)
    return running(model, classify(model))


@well((0, 1, 2))
def mlp_trained(seed: int) -> Scene:
    model: Any = mlp(16, WIDTHS[seed], WIDTHS[seed], 4)
    return running(model, classify(model), trained=100, lr=3e-3)


@well((0, 1))
def mlp_of_five_layers_as_torch_starts_it(seed: int) -> Scene:
    model: Any = mlp(16, *[WIDTHS[seed]] * 4, 4)
    return running(model, classify(model))


@well((0, 1, 2))
def deep_mlp_started_by_he(seed: int) -> Scene:
    model: Any = he(mlp(16, *[WIDTHS[seed]] * 15, 4))
    return running(model, classify(model), lr=3e-4)


@well((0, 1))
def deep_mlp_started_by_he_trained(seed: int) -> Scene:
    model: Any = he(mlp(16, *[WIDTHS[seed]] * 9, 4))
    return running(model, classify(model), trained=100, lr=3e-4)


@well((0, 1))
def tanh_mlp_started_by_glorot(seed: int) -> Scene:
    model: Any = he(mlp(16, *[WIDTHS[seed]] * 6, 4, activation=nn.Tanh), gain=5 / 3)
    return running(model, classify(model), trained=60 * seed)


@well((0, 1))
def sigmoid_mlp_of_two_layers_trained(seed: int) -> Scene:
    model: Any = mlp(16, WIDTHS[seed], 4, activation=nn.Sigmoid)
    return running(model, classify(model), trained=150, lr=1e-2)


@well((0, 1))
def gelu_mlp_with_layer_norm(seed: int) -> Scene:
    model: Any = mlp(16, *[WIDTHS[seed]] * 8, 4, activation=nn.GELU, norm=nn.LayerNorm)
    return running(model, classify(model), trained=80 * seed)


@well((0, 1))
def silu_mlp_with_batch_norm_trained(seed: int) -> Scene:
    model: Any = mlp(16, *[WIDTHS[seed]] * 4, 4, activation=nn.SiLU, norm=nn.BatchNorm1d)
    return running(model, classify(model), trained=80)


@well((0, 1))
def mlp_with_sgd(seed: int) -> Scene:
    model: Any = mlp(16, WIDTHS[seed], 32, 4)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    batch = classify(model)
    steps((batch(i) for i in range(100 * seed)), optimiser)
    return model, lambda: steps((batch(500 + i) for i in range(3)), optimiser)


@well((0, 1))
def autoencoder(seed: int) -> Scene:
    model: Any = mlp(16, 64, 32, 4, 32, 64, 16)
    return running(model, restore(model, points), trained=100 * seed)


@well((0, 1))
def autoencoder_of_tanh_trained(seed: int) -> Scene:
    model: Any = mlp(16, 64, 4, 64, 16, activation=nn.Tanh)
    return running(model, restore(model, points), trained=100, lr=3e-3)


class TinyLastLayer(nn.Module):
    """A policy, whose last layer starts a hundred times smaller, as reinforcement learning has it."""

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp(16, 64, 64, 64, activation=nn.Tanh)
        self.head = nn.Linear(64, 4)
        nn.init.orthogonal_(self.head.weight, 0.01)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(torch.tanh(self.body(x)))
        return y


@well((0, 1))
def policy_with_a_small_last_layer(seed: int) -> Scene:
    model: Any = TinyLastLayer()
    return running(model, classify(model), trained=40 * seed, lr=3e-4)


@well((0, 1))
def frozen_backbone(seed: int) -> Scene:
    model: Any = mlp(16, 64, 64, 64, 4)
    model[:5].requires_grad_(False)
    optimiser = torch.optim.Adam(model[5:].parameters(), lr=1e-2)
    batch = classify(model)
    return model, lambda: steps((batch(seed + i) for i in range(3)), optimiser)


class Taught(nn.Module):
    """A student, and a frozen copy of it that teaches."""

    def __init__(self) -> None:
        super().__init__()
        self.student = mlp(16, 32, 32, 4)
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.student(x) + 0 * self.teacher(x).detach()
        return y


@well((0, 1))
def student_and_frozen_teacher(seed: int) -> Scene:
    model: Any = Taught()
    return model, lambda: classify(model)(seed)().backward()


@well((0, 1))
def mlp_only_looked_at(seed: int) -> Scene:
    model: Any = mlp(16, 64, 64, 64, 4).eval()

    def run() -> None:
        with torch.no_grad():
            model(points(seed)[0])

    return model, run


@well((0,))
def one_batch_of_one(seed: int) -> Scene:
    model: Any = mlp(16, 64, 64, 4)
    return model, lambda: model(points(seed, count=1)[0]).square().mean().backward()


@well((0, 1))
def inputs_of_very_different_sizes(seed: int) -> Scene:
    """A table whose columns are of size 0.1 to 10, behind a norm."""
    model: Any = nn.Sequential(nn.BatchNorm1d(16), mlp(16, 64, 64, 4))
    scales = torch.logspace(-1, 1, 16)

    def data(number: int) -> tuple[Tensor, Tensor]:
        x, labels = points(number)
        return x * scales, labels

    return running(model, classify(model, data), trained=80 * seed)


@well((0, 1))
def shared_layer_called_many_times(seed: int) -> Scene:
    layer = nn.Linear(32, 32)
    model: Any = nn.Sequential(
        nn.Linear(16, 32), *[nn.Sequential(nn.LayerNorm(32), layer, nn.ReLU()) for _ in range(4)], nn.Linear(32, 4)
    )
    return running(model, classify(model), trained=60 * seed)


@well((0, 1))
def gradients_that_are_summed(seed: int) -> Scene:
    model: Any = mlp(16, 64, 64, 4)
    optimiser, batch = adam(model), classify(model)

    def run() -> None:
        for i in range(4):
            (batch(seed + i)() / 4).backward()
        optimiser.step()

    return model, run


@well((0, 1))
def random_features_that_are_frozen(seed: int) -> Scene:
    """Waves of the inputs at high frequencies (Tancik et al. 2020): large weights by design."""
    waves = nn.Linear(16, 128).requires_grad_(False)
    nn.init.normal_(waves.weight, std=10.0)
    model = nn.Sequential(waves, Waves(), mlp(128, 64, 4))
    return running(model, classify(model), trained=40 * seed)


class Waves(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(x)
