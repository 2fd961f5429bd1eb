"""Signals and gradients that fade or grow by depth."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.diagnostics.cases import Scene, fault, running
from tests.diagnostics.networks import Recurrent, he, mlp
from tests.diagnostics.tasks import classify, images, points, predict


@fault("vanishing-activations", "22", ["vanishing-gradients"])
def mlp_with_a_quarter_of_the_gain() -> Scene:
    """Each layer takes three quarters of the signal; the gradient fares the same way back."""
    model: Any = he(mlp(16, *[64] * 11, 4), gain=0.25 * 2**0.5)
    return model, lambda: classify(model)(0)().backward()


@fault("vanishing-activations", "14", ["vanishing-gradients"])
def convolutions_that_start_at_002_without_a_norm() -> Scene:
    layers: list[nn.Module] = []
    for i in range(8):
        layers += [nn.Conv2d(8 if i else 1, 8, 3, padding=1, bias=False), nn.ReLU()]
    model: Any = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.02)
    return running(model, classify(model, images))


@fault("vanishing-gradients", "0")
def sigmoids_eight_layers_deep() -> Scene:
    model: Any = mlp(16, *[64] * 8, 4, activation=nn.Sigmoid)
    return running(model, classify(model))


class Named(nn.Module):
    """Its layers have names and no numbers, and its activations are functions."""

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(16, 64), nn.Linear(64, 64), nn.Linear(64, 64)
        self.fourth, self.fifth, self.sixth = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 4)
        he(self, gain)

    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.first, self.second, self.third, self.fourth, self.fifth):
            x = F.relu(layer(x))
        y: Tensor = self.sixth(x)
        return y


@fault("exploding-activations", "sixth", ["exploding-gradients", "loss-above-chance"])
def named_layers_with_a_gain_of_six() -> Scene:
    """Logits of size a thousand make a loss of as much."""
    model: Any = Named(6.0)
    return running(model, classify(model))


@fault("exploding-activations", "18", ["exploding-gradients", "loss-above-chance"])
def mlp_with_three_times_the_gain() -> Scene:
    model: Any = he(mlp(16, *[48] * 9, 4), gain=3 * 2**0.5)
    return running(model, classify(model))


@fault("exploding-activations", "cell", ["loss-above-chance"])
def recurrent_state_without_bound() -> Scene:
    model: Any = Recurrent(squash=F.relu)
    with torch.no_grad():
        model.cell.keeps.weight.mul_(3.0)
    return running(model, predict(model))


@fault("exploding-gradients", "0")
def batch_norm_fifty_layers_deep_without_residuals() -> Scene:
    """Yang et al. 2019, "A Mean Field Theory of Batch Normalization": the gradient grows by 1.2 a layer."""
    model: Any = he(mlp(16, *[32] * 50, 4, norm=nn.BatchNorm1d))
    return running(model, classify(model, lambda i: points(i, count=32)), lr=1e-4)


@fault("vanishing-gradients", "0")
def relu_mlp_of_sixteen_layers_as_torch_starts_it() -> Scene:
    """Biases keep the signal alive, but what it tells of the input fades, and the gradient with it."""
    model: Any = mlp(16, *[64] * 16, 4)
    return running(model, classify(model))


@fault("exploding-gradients", "0")
def tanh_with_twice_the_gain_thirty_layers_deep() -> Scene:
    """Bounded signals hide it: neighbours are torn apart by every layer (Poole et al. 2016, the chaotic phase)."""
    model: Any = he(mlp(16, *[64] * 30, 4, activation=nn.Tanh), gain=3.0)
    return running(model, classify(model), lr=1e-4)
