"""MLPs of several depths and activations, autoencoders, frozen layers, eval mode."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from tests.diagnostics.cases import Setup, adamw, healthy, run_steps, two_training_steps
from tests.diagnostics.networks import mlp, scaled_init
from tests.diagnostics.tasks import classify, points, reconstruct

WIDTHS = (32, 64, 128)


@healthy((0, 1, 2))
def mlp_at_init(seed: int) -> Setup:
    model: Any = mlp(16, WIDTHS[seed], WIDTHS[seed], 4)
    return two_training_steps(model, classify(model))


@healthy((0, 1, 2))
def mlp_trained(seed: int) -> Setup:
    model: Any = mlp(16, WIDTHS[seed], WIDTHS[seed], 4)
    return two_training_steps(model, classify(model), after=100, lr=3e-3)


@healthy((0, 1))
def five_layer_mlp_default_init(seed: int) -> Setup:
    model: Any = mlp(16, *[WIDTHS[seed]] * 4, 4)
    return two_training_steps(model, classify(model))


@healthy((0, 1, 2))
def deep_mlp_he_init(seed: int) -> Setup:
    model: Any = scaled_init(mlp(16, *[WIDTHS[seed]] * 15, 4))
    return two_training_steps(model, classify(model), lr=3e-4)


@healthy((0, 1), quick=False)
def deep_mlp_he_init_trained(seed: int) -> Setup:
    model: Any = scaled_init(mlp(16, *[WIDTHS[seed]] * 9, 4))
    return two_training_steps(model, classify(model), after=100, lr=3e-4)


@healthy((0, 1))
def tanh_mlp_gain_5_3(seed: int) -> Setup:
    model: Any = scaled_init(mlp(16, *[WIDTHS[seed]] * 6, 4, activation=nn.Tanh), gain=5 / 3)
    return two_training_steps(model, classify(model), after=60 * seed)


@healthy((0, 1))
def two_layer_sigmoid_mlp_trained(seed: int) -> Setup:
    model: Any = mlp(16, WIDTHS[seed], 4, activation=nn.Sigmoid)
    return two_training_steps(model, classify(model), after=150, lr=1e-2)


@healthy((0, 1))
def gelu_mlp_with_layernorm(seed: int) -> Setup:
    model: Any = mlp(16, *[WIDTHS[seed]] * 8, 4, activation=nn.GELU, norm=nn.LayerNorm)
    return two_training_steps(model, classify(model), after=80 * seed)


@healthy((0, 1), quick=False)
def silu_mlp_with_batchnorm_trained(seed: int) -> Setup:
    model: Any = mlp(16, *[WIDTHS[seed]] * 4, 4, activation=nn.SiLU, norm=nn.BatchNorm1d)
    return two_training_steps(model, classify(model), after=80)


@healthy((0, 1))
def mlp_with_sgd(seed: int) -> Setup:
    model: Any = mlp(16, WIDTHS[seed], 32, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    batch = classify(model)
    run_steps((batch(i) for i in range(100 * seed)), optimizer)
    return model, lambda: run_steps((batch(500 + i) for i in range(3)), optimizer)


@healthy((0, 1))
def autoencoder(seed: int) -> Setup:
    model: Any = mlp(16, 64, 32, 4, 32, 64, 16)
    return two_training_steps(model, reconstruct(model, points), after=100 * seed)


@healthy((0, 1))
def tanh_autoencoder_trained(seed: int) -> Setup:
    model: Any = mlp(16, 64, 4, 64, 16, activation=nn.Tanh)
    return two_training_steps(model, reconstruct(model, points), after=100, lr=3e-3)


class SmallOutputPolicy(nn.Module):
    """A policy whose output layer starts a hundred times smaller, as is common in reinforcement learning."""

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp(16, 64, 64, 64, activation=nn.Tanh)
        self.head = nn.Linear(64, 4)
        nn.init.orthogonal_(self.head.weight, 0.01)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(torch.tanh(self.body(x)))
        return y


@healthy((0, 1))
def policy_with_small_output_init(seed: int) -> Setup:
    model: Any = SmallOutputPolicy()
    return two_training_steps(model, classify(model), after=40 * seed, lr=3e-4)


@healthy((0, 1))
def frozen_backbone(seed: int) -> Setup:
    model: Any = mlp(16, 64, 64, 64, 4)
    model[:5].requires_grad_(False)
    optimizer = torch.optim.Adam(model[5:].parameters(), lr=1e-2)
    batch = classify(model)
    return model, lambda: run_steps((batch(seed + i) for i in range(3)), optimizer)


class Distillation(nn.Module):
    """A student, and a frozen copy of it as the teacher."""

    def __init__(self) -> None:
        super().__init__()
        self.student = mlp(16, 32, 32, 4)
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.student(x) + 0 * self.teacher(x).detach()
        return y


@healthy((0, 1))
def student_and_frozen_teacher(seed: int) -> Setup:
    model: Any = Distillation()
    return model, lambda: classify(model)(seed)().backward()


@healthy((0, 1))
def mlp_eval_forward_only(seed: int) -> Setup:
    model: Any = mlp(16, 64, 64, 64, 4).eval()

    def run() -> None:
        with torch.no_grad():
            model(points(seed)[0])

    return model, run


@healthy((0,))
def mlp_batch_size_1(seed: int) -> Setup:
    model: Any = mlp(16, 64, 64, 4)
    return model, lambda: model(points(seed, count=1)[0]).square().mean().backward()


@healthy((0, 1))
def inputs_of_different_scales(seed: int) -> Setup:
    """Columns with scales from 0.1 to 10, followed by a norm."""
    model: Any = nn.Sequential(nn.BatchNorm1d(16), mlp(16, 64, 64, 4))
    scales = torch.logspace(-1, 1, 16)

    def data(number: int) -> tuple[Tensor, Tensor]:
        x, labels = points(number)
        return x * scales, labels

    return two_training_steps(model, classify(model, data), after=80 * seed)


@healthy((0, 1))
def shared_layer_called_many_times(seed: int) -> Setup:
    layer = nn.Linear(32, 32)
    model: Any = nn.Sequential(
        nn.Linear(16, 32), *[nn.Sequential(nn.LayerNorm(32), layer, nn.ReLU()) for _ in range(4)], nn.Linear(32, 4)
    )
    return two_training_steps(model, classify(model), after=60 * seed)


@healthy((0, 1))
def gradient_accumulation(seed: int) -> Setup:
    model: Any = mlp(16, 64, 64, 4)
    optimizer, batch = adamw(model), classify(model)

    def run() -> None:
        for i in range(4):
            (batch(seed + i)() / 4).backward()
        optimizer.step()

    return model, run


@healthy((0, 1))
def frozen_fourier_features(seed: int) -> Setup:
    """High-frequency features of the input (Tancik et al. 2020): large weights by design."""
    frequencies = nn.Linear(16, 128).requires_grad_(False)
    nn.init.normal_(frequencies.weight, std=10.0)
    model = nn.Sequential(frequencies, Sine(), mlp(128, 64, 4))
    return two_training_steps(model, classify(model), after=40 * seed)


class Sine(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(x)
