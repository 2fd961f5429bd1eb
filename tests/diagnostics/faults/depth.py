"""Activations and gradients that vanish or explode with depth."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.diagnostics.cases import Setup, fault, two_training_steps
from tests.diagnostics.networks import RNN, mlp, scaled_init
from tests.diagnostics.tasks import classify, images, points, predict_next


@fault("vanishing-activations", "22", ["vanishing-gradients"])
def mlp_init_gain_too_small() -> Setup:
    """Each layer shrinks the signal to a quarter, and the gradient on the way back."""
    model: Any = scaled_init(mlp(16, *[64] * 11, 4), gain=0.25 * 2**0.5)
    return model, lambda: classify(model)(0)().backward()


@fault("vanishing-activations", "14", ["vanishing-gradients"])
def convnet_small_init_without_norm() -> Setup:
    layers: list[nn.Module] = []
    for i in range(8):
        layers += [nn.Conv2d(8 if i else 1, 8, 3, padding=1, bias=False), nn.ReLU()]
    model: Any = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.02)
    return two_training_steps(model, classify(model, images))


@fault("vanishing-gradients", "0")
def deep_sigmoid_mlp() -> Setup:
    model: Any = mlp(16, *[64] * 8, 4, activation=nn.Sigmoid)
    return two_training_steps(model, classify(model))


class Named(nn.Module):
    """Layers are named, not numbered, and activations are functions."""

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(16, 64), nn.Linear(64, 64), nn.Linear(64, 64)
        self.fourth, self.fifth, self.sixth = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 4)
        scaled_init(self, gain)

    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.first, self.second, self.third, self.fourth, self.fifth):
            x = F.relu(layer(x))
        y: Tensor = self.sixth(x)
        return y


@fault("exploding-activations", "sixth", ["exploding-gradients", "loss-above-chance"])
def functional_mlp_gain_of_six() -> Setup:
    """Logits in the thousands give a loss of the same size."""
    model: Any = Named(6.0)
    return two_training_steps(model, classify(model))


@fault("exploding-activations", "18", ["exploding-gradients", "loss-above-chance"])
def mlp_init_gain_too_large() -> Setup:
    model: Any = scaled_init(mlp(16, *[48] * 9, 4), gain=3 * 2**0.5)
    return two_training_steps(model, classify(model))


@fault("exploding-activations", "cell", ["loss-above-chance"])
def unbounded_rnn_state() -> Setup:
    model: Any = RNN(activation=F.relu)
    with torch.no_grad():
        model.cell.state_proj.weight.mul_(3.0)
    return two_training_steps(model, predict_next(model))


@fault("exploding-gradients", "0")
def deep_batchnorm_without_residuals() -> Setup:
    """Yang et al. 2019, "A Mean Field Theory of Batch Normalization": the gradient grows 1.2 times per layer."""
    model: Any = scaled_init(mlp(16, *[32] * 50, 4, norm=nn.BatchNorm1d))
    return two_training_steps(model, classify(model, lambda i: points(i, count=32)), lr=1e-4)


@fault("vanishing-gradients", "0")
def deep_relu_mlp_default_init() -> Setup:
    """Biases keep the signal alive, but its dependence on the input vanishes, and so does the gradient."""
    model: Any = mlp(16, *[64] * 16, 4)
    return two_training_steps(model, classify(model))


@fault("exploding-gradients", "0")
def deep_tanh_mlp_large_gain() -> Setup:
    """Activations stay bounded, but gradients explode (Poole et al. 2016, the chaotic phase)."""
    model: Any = scaled_init(mlp(16, *[64] * 30, 4, activation=nn.Tanh), gain=3.0)
    return two_training_steps(model, classify(model), lr=1e-4)
