"""Dead and saturated units."""

from typing import Any

import torch
from torch import Tensor, nn

from tests.diagnostics.cases import Setup, fault, two_training_steps
from tests.diagnostics.healthy.gpts import gpt
from tests.diagnostics.networks import convnet, mlp, scaled_init
from tests.diagnostics.tasks import classify, images, points, predict_next

BATCH = 128


@fault("dead-units", "3", ["zero-gradient"])
def dead_relu_layer() -> Setup:
    """No gradient passes, so layers before it get zeros."""
    model: Any = mlp(16, 64, 64, 4)
    nn.init.constant_(model[2].bias, -100.0)
    return two_training_steps(model, classify(model, lambda i: points(i, BATCH)))


@fault("dead-units", "1", ["zero-gradient"])
def dead_relu_layer_small_batch() -> Setup:
    """One unit may be zero for eight inputs, but not a layer of 64. The next layer gets no gradient either."""
    model: Any = mlp(16, 64, 64, 4)
    nn.init.constant_(model[0].bias, -100.0)
    return model, lambda: classify(model, lambda i: points(i, 8))(0)().backward()


@fault("dead-units", "1", ["zero-gradient", "dead-units"])
def all_weights_zero() -> Setup:
    """Every layer outputs zeros, and no gradient passes the last one."""
    model: Any = mlp(16, 64, 64, 4)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    return model, lambda: classify(model)(0)().backward()


@fault("dead-units", "6")
def dead_convnet_channels() -> Setup:
    model: Any = convnet(channels=16)
    with torch.no_grad():
        model[5].bias[:11] = -20.0
    return two_training_steps(model, classify(model, images))


@fault("dead-units", "blocks.1.mlp.relu2()")
def dead_relu2_units() -> Setup:
    """Three quarters of the units have biases so low that no token activates them."""
    model: Any = gpt("nanochat", 0, bias=True)
    up = model.blocks[1].mlp.up
    with torch.no_grad():
        up.bias[: 3 * len(up.bias) // 4] = -30.0
    return two_training_steps(model, predict_next(model))


@fault("saturated-units", "3", ["abnormal-gain"])
def saturated_tanh() -> Setup:
    """The weights have an abnormal gain, which saturates the tanh after them."""
    model: Any = scaled_init(mlp(16, 64, 64, 64, 4, activation=nn.Tanh), gain=1.0)
    with torch.no_grad():
        model[2].weight.mul_(40.0)
    return two_training_steps(model, classify(model, lambda i: points(i, BATCH)))


@fault("saturated-units", "1", ["unscaled-input"])
def saturated_sigmoid_on_raw_pixels() -> Setup:
    model: Any = mlp(16, 64, 4, activation=nn.Sigmoid)
    nn.init.xavier_normal_(model[0].weight)

    def data(number: int) -> tuple[torch.Tensor, torch.Tensor]:
        x, labels = points(number, BATCH)
        return ((x + 3) * 40).clamp(0, 255), labels

    return two_training_steps(model, classify(model, data))


class SharedReLUBlock(nn.Module):
    """A residual block that calls one ReLU module twice."""

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
def dead_layer_with_shared_relu() -> Setup:
    """Layers before it, and the layer that reads it, get no gradient."""
    blocks = [SharedReLUBlock(16) for _ in range(3)]
    nn.init.constant_(blocks[1].norm1.bias, -20.0)
    model: Any = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4)
    )
    return model, lambda: classify(model, images)(0)().backward()
