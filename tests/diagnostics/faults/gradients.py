"""Weights that get no gradient, and parts that never run."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.diagnostics.cases import Scene, fault, running
from tests.diagnostics.networks import Block, Decoder, ResNet, mlp
from tests.diagnostics.tasks import classify, images, points, predict


class Detached(Block):
    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x)).detach()
        y: Tensor = x + self.feed(self.norm2(x))
        return y


@fault("no-gradient", "blocks.1.attention", ["no-gradient"])
def branch_that_is_detached() -> Scene:
    """The norm before it is cut off with it."""
    model: Any = Decoder(depth=3)
    model.blocks[1] = Detached(32, 4, nn.LayerNorm, False, True)
    return running(model, predict(model))


class Halved(nn.Module):
    """Somebody computed the features without gradients to save memory, and left them trainable."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.head = mlp(16, 64, 64), nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = self.features(x)
        y: Tensor = self.head(F.relu(x))
        return y


@fault("no-gradient", "features")
def features_computed_without_gradients() -> Scene:
    model: Any = Halved()
    return running(model, classify(model))


class Muted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.head = nn.Linear(16, 32), nn.Linear(16, 32), nn.Linear(32, 4)
        self.share = 0.0

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(F.relu(self.left(x)) + self.share * torch.tanh(self.right(x)))
        return y


@fault("zero-gradient", "right")
def branch_multiplied_by_zero() -> Scene:
    model: Any = Muted()
    return running(model, classify(model))


@fault("zero-gradient", "blocks.2.feed.up", ["zero-gradient"])
def mask_that_hides_a_whole_branch() -> Scene:
    """What reads zeros gets no gradient either."""
    model: Any = Decoder(depth=4)

    class Masked(nn.Module):
        def __init__(self, inner: Any) -> None:
            super().__init__()
            self.up, self.down = inner.up, inner.down

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.down(F.gelu(self.up(x)) * torch.zeros(x.shape[0], x.shape[1], 1))
            return y

    model.blocks[2].feed = Masked(model.blocks[2].feed)
    return running(model, predict(model))


@fault("never-ran", "spare", note=True)
def block_that_is_never_called() -> Scene:
    model: Any = Decoder(depth=2)
    model.spare = Block(32, 4, nn.LayerNorm, False, True)
    return running(model, predict(model))


@fault("never-ran", "blocks.2.norm2", note=True)
def norm_that_was_forgotten_in_forward() -> Scene:
    model: Any = ResNet(depth=3)

    def forward(x: Tensor) -> Tensor:
        block = model.blocks[2]
        return F.relu(x + block.conv2(F.relu(block.norm1(block.conv1(x)))))

    model.blocks[2].forward = forward
    return running(model, classify(model, images))


@fault("zero-gradient", "")
def gradients_too_small_for_half_precision() -> Scene:
    """Of a loss that nobody scaled; none of them is left."""
    model: Any = mlp(16, 64, 64, 4).half()

    def run() -> None:
        x, labels = points(0)
        (1e-9 * F.cross_entropy(model(x.half()).float(), labels)).backward()

    return model, run
