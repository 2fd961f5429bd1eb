"""Weights without a gradient, and modules that never run."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.diagnostics.cases import Setup, fault, two_training_steps
from tests.diagnostics.networks import Block, Decoder, ResNet, mlp
from tests.diagnostics.tasks import classify, images, points, predict_next


class Detached(Block):
    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x)).detach()
        y: Tensor = x + self.feed(self.norm2(x))
        return y


@fault("no-gradient", "blocks.1.attention", ["no-gradient"])
def detached_branch() -> Setup:
    """The norm before the branch gets no gradient either."""
    model: Any = Decoder(depth=3)
    model.blocks[1] = Detached(32, 4, nn.LayerNorm, False, True)
    return two_training_steps(model, predict_next(model))


class NoGradFeatures(nn.Module):
    """Features are computed under no_grad to save memory, but are left trainable."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.head = mlp(16, 64, 64), nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = self.features(x)
        y: Tensor = self.head(F.relu(x))
        return y


@fault("no-gradient", "features")
def features_under_no_grad() -> Setup:
    model: Any = NoGradFeatures()
    return two_training_steps(model, classify(model))


class ZeroedBranch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.head = nn.Linear(16, 32), nn.Linear(16, 32), nn.Linear(32, 4)
        self.scale = 0.0

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(F.relu(self.left(x)) + self.scale * torch.tanh(self.right(x)))
        return y


@fault("zero-gradient", "right")
def branch_multiplied_by_zero() -> Setup:
    model: Any = ZeroedBranch()
    return two_training_steps(model, classify(model))


@fault("zero-gradient", "blocks.2.feed.up", ["zero-gradient", "differs-from-peers"])
def branch_masked_to_zero() -> Setup:
    """The layer that reads the zeros gets no gradient either."""
    model: Any = Decoder(depth=4)

    class Masked(nn.Module):
        def __init__(self, inner: Any) -> None:
            super().__init__()
            self.up, self.down = inner.up, inner.down

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.down(F.gelu(self.up(x)) * torch.zeros(x.shape[0], x.shape[1], 1))
            return y

    model.blocks[2].feed = Masked(model.blocks[2].feed)
    return two_training_steps(model, predict_next(model))


@fault("never-ran", "spare", note=True)
def unused_block() -> Setup:
    model: Any = Decoder(depth=2)
    model.spare = Block(32, 4, nn.LayerNorm, False, True)
    return two_training_steps(model, predict_next(model))


@fault("never-ran", "blocks.2.norm2", note=True)
def norm_skipped_in_forward() -> Setup:
    model: Any = ResNet(depth=3)

    def forward(x: Tensor) -> Tensor:
        block = model.blocks[2]
        return F.relu(x + block.conv2(F.relu(block.norm1(block.conv1(x)))))

    model.blocks[2].forward = forward
    return two_training_steps(model, classify(model, images))


@fault("zero-gradient", "")
def float16_gradient_underflow() -> Setup:
    """The loss isn't scaled, so all gradients underflow."""
    model: Any = mlp(16, 64, 64, 4).half()

    def run() -> None:
        x, labels = points(0)
        (1e-9 * F.cross_entropy(model(x.half()).float(), labels)).backward()

    return model, run
