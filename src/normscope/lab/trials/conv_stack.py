"""A deep stack of plain convolutions for the digits, trained by plain SGD, for the studies of BatchNorm."""

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normscope.blocks.linear import Linear
from normscope.blocks.norm.spec import IMAGE_NORMS, as_norm, build_norm
from normscope.errors import ConfigError
from normscope.lab.trials.digits import CLASSES, SIZE, Digits
from normscope.lab.trials.noise import FeatureNoise
from normscope.models.convnet import Convolution

WIDTHS, DEPTH = (16, 32, 32), 3
"""Channels of each stage, and convolutions per stage; between stages the image is halved."""
NORMS = ("none", "batch", "group", "noisy batch")


class ConvStack(nn.Module):
    """Nine times convolution, norm and ReLU, halving the image after every third; then average pooling and a head.

    Args:
        norm: one of `NORMS`; noisy batch is BatchNorm followed by new noise at every step.
    """

    def __init__(self, norm: str) -> None:
        super().__init__()
        if norm not in NORMS:
            raise ConfigError(f"unknown norm {norm!r} for a ConvStack\nfix: {', '.join(NORMS)}")
        spec = as_norm(norm.removeprefix("noisy "), IMAGE_NORMS)
        self.convolutions, self.norms = nn.ModuleList(), nn.ModuleList()
        before, size = 1, SIZE
        for width in WIDTHS:
            for _ in range(DEPTH):
                # With a norm, the bias belongs to the norm.
                self.convolutions.append(Convolution(before, width, 3, padding=1, bias=spec is None))
                after = build_norm(spec, (None, width, size, size))
                self.norms.append(nn.Sequential(after, FeatureNoise()) if norm.startswith("noisy") else after)
                before = width
            size //= 2
        self.head = Linear(before, CLASSES, role="head")

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(images)[-1].relu().mean(dim=(2, 3)))
        return logits

    def features(self, images: Tensor) -> list[Tensor]:
        """Return the input of every ReLU, n c h w each."""
        x, found = images, []
        for layer, (conv, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            if layer:
                x = x.relu()
                x = F.max_pool2d(x, 2) if layer % DEPTH == 0 else x
            x = norm(conv(x))
            found.append(x)
        return found


def training(model: ConvStack, digits: Digits, *, batch: int, steps: int, lr: float, seed: int) -> Iterator[float]:
    """Train by SGD at a constant learning rate, yielding the loss of each step; stop at a non-finite loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for step in range(steps):
        images, labels = digits.batch(step, batch, seed)
        loss = F.cross_entropy(model(images), labels)
        value = loss.item()
        if not math.isfinite(value):
            return
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield value


def checkpoints(steps: int, count: int) -> set[int]:
    """Return `count` evenly spaced steps, starting with the first.

    >>> sorted(checkpoints(400, 4))
    [0, 100, 200, 300]
    """
    return {i * steps // count for i in range(count)}
