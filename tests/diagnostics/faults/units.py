"""Units that are dead or stuck."""

from typing import Any

import torch
from torch import Tensor, nn

from tests.diagnostics.cases import Scene, fault, running
from tests.diagnostics.healthy.wirings import gpt
from tests.diagnostics.networks import convnet, he, mlp
from tests.diagnostics.tasks import classify, images, points, predict

MANY = 128


@fault("dead-units", "3", ["zero-gradient"])
def layer_whose_bias_drowns_its_input() -> Scene:
    """No gradient goes through it, so what is before it gets zeros."""
    model: Any = mlp(16, 64, 64, 4)
    nn.init.constant_(model[2].bias, -100.0)
    return running(model, classify(model, lambda i: points(i, MANY)))


@fault("dead-units", "1", ["zero-gradient"])
def dead_layer_in_a_small_batch() -> Scene:
    """A single unit may sleep through eight inputs; a layer of 64 does not. What reads it gets no gradient either."""
    model: Any = mlp(16, 64, 64, 4)
    nn.init.constant_(model[0].bias, -100.0)
    return model, lambda: classify(model, lambda i: points(i, 8))(0)().backward()


@fault("dead-units", "1", ["zero-gradient", "dead-units"])
def weights_that_are_all_zero() -> Scene:
    """Every layer gives zeros, and no gradient comes past the last one."""
    model: Any = mlp(16, 64, 64, 4)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    return model, lambda: classify(model)(0)().backward()


@fault("dead-units", "6")
def most_channels_of_a_convnet_dead() -> Scene:
    model: Any = convnet(channels=16)
    with torch.no_grad():
        model[5].bias[:11] = -20.0
    return running(model, classify(model, images))


@fault("dead-units", "blocks.1.mlp.relu2()")
def relu2_with_weights_that_only_inhibit() -> Scene:
    """A rate that was too high has left three quarters of the units where no token wakes them."""
    model: Any = gpt("nanochat", 0, bias=True)
    up = model.blocks[1].mlp.up
    with torch.no_grad():
        up.bias[: 3 * len(up.bias) // 4] = -30.0
    return running(model, predict(model))


@fault("saturated-units", "3", ["abnormal-gain"])
def tanh_after_weights_of_size_five() -> Scene:
    """Its gain is what is wrong, and the tanh after it is what suffers."""
    model: Any = he(mlp(16, 64, 64, 64, 4, activation=nn.Tanh), gain=1.0)
    with torch.no_grad():
        model[2].weight.mul_(40.0)
    return running(model, classify(model, lambda i: points(i, MANY)))


@fault("saturated-units", "1")
def pixels_from_0_to_255_before_a_sigmoid() -> Scene:
    model: Any = mlp(16, 64, 4, activation=nn.Sigmoid)
    nn.init.xavier_normal_(model[0].weight)

    def data(number: int) -> tuple[torch.Tensor, torch.Tensor]:
        x, labels = points(number, MANY)
        return ((x + 3) * 40).clamp(0, 255), labels

    return running(model, classify(model, data))


class Shared(nn.Module):
    """A residual block with one ReLU for both of its places."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1, self.norm2, self.relu = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.second(self.relu(self.norm1(self.first(x)))))
        z: Tensor = self.relu(x + y)
        return z


@fault("dead-units", "2.relu", ["zero-gradient"])
def dead_layer_before_a_relu_that_others_share() -> Scene:
    """What is before it, and what reads it, gets no gradient."""
    blocks = [Shared(16) for _ in range(3)]
    nn.init.constant_(blocks[1].norm1.bias, -20.0)
    model: Any = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4)
    )
    return model, lambda: classify(model, images)(0)().backward()
