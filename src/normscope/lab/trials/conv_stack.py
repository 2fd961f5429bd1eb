"""A deep stack of plain convolutions for the studies of BatchNorm, and probes of it in training.

Noise after a norm undoes its effect: mean and variance change at every step. The probes measure covariate shift, and
the loss along the gradient direction.
"""

import copy
import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normscope.blocks.linear import Linear
from normscope.blocks.norm.norm_spec import IMAGE_NORMS, as_norm, build_norm
from normscope.errors import ConfigError
from normscope.lab.trials.images import CLASSES, SIZE
from normscope.models.convnet import Convolution

WIDTHS, DEPTH = (16, 32, 32), 3
"""Channels of each stage, and convolutions per stage; between stages the image is halved."""
NORMS = ("none", "batch", "group", "noisy batch")
MEAN, SCALE, SCATTER = 0.5, 1.25, 0.1
"""Of the noise: bounds of a feature's mean and scale, and the scatter of single values around both."""
EXPECTED_SCALE = (1 + SCALE) / 2
"""The expected mean is 0."""
REACH = tuple(2.0 ** (power / 2) for power in range(-2, 5))
"""Distances along the gradient, in training steps: from half a step to four."""
LARGEST = 1e6
"""Replaces non-finite values."""
FeatureMoments = list[tuple[Tensor, Tensor]]
"""Mean and standard deviation of each feature, for every layer."""


class FeatureNoise(nn.Module):
    """Noise with a mean and a scale per feature, drawn at every step.

    A feature is a channel, as in BatchNorm: mean and scale are the same for all images and positions, and are what
    BatchNorm standardizes. With a mean and a scale per position, most of the noise would cancel within a channel.

    Formula:
        mu_c ~ U(-0.5, 0.5), sigma_c ~ U(1, 1.25)                       for each feature c, at every step
        m ~ U(mu_c - 0.1, mu_c + 0.1), s ~ N(sigma_c, 0.1)              independently for each of its values
        y = s x + m
        In eval mode y = E[s] x + E[m] = 1.125 x: later layers have never seen the scale 1.

    Shapes:
        x: (n, c, h, w). y: the same.

    Paper:
        Santurkar et al. 2018, "How Does Batch Normalization Help Optimization?", the appendix on noisy BatchNorm. It
        draws a mean and a scale per unit, and does not say whether a unit of a convolution is a channel.
    """

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return EXPECTED_SCALE * x
        mean = torch.empty(1, x.shape[1], 1, 1).uniform_(-MEAN, MEAN)
        scale = torch.empty(1, x.shape[1], 1, 1).uniform_(1.0, SCALE)
        shifts = mean + torch.empty_like(x).uniform_(-SCATTER, SCATTER)
        scales = scale + SCATTER * torch.randn_like(x)
        return scales * x + shifts


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


def checkpoints(steps: int, count: int) -> set[int]:
    """Return `count` evenly spaced steps, starting with the first.

    >>> sorted(checkpoints(400, 4))
    [0, 100, 200, 300]
    """
    return {i * steps // count for i in range(count)}


def expected_shift(points: int = 60) -> float:
    """Expected shift per step, as in `shift_between`, of a feature of mean 0 and variance 1 with this noise.

    The feature's mean is then mu, and its variance sigma² + 0.1² + 0.1²/3: of the scale, its scatter and that of the
    mean. The expectation is over two draws of both, on a grid.

    >>> round(expected_shift(), 3)
    0.317
    """
    middles = (torch.arange(points, dtype=torch.float64) + 0.5) / points
    means = MEAN * (2 * middles - 1)
    moved = (means[:, None] - means).flatten()[:, None, None]
    stds = ((1 + (SCALE - 1) * middles) ** 2 + SCATTER**2 * (1 + 1 / 3)).sqrt()
    return float((torch.hypot(moved, stds[:, None] - stds) / stds).mean())


@torch.no_grad()
def feature_moments(model: ConvStack, images: Tensor) -> FeatureMoments:
    """Moments in training mode, before the ReLU; of a copy, to leave the running statistics unchanged."""
    return [(x.mean(dim=(0, 2, 3)), x.std(dim=(0, 2, 3))) for x in copy.deepcopy(model).features(images)]


def shift_between(before: FeatureMoments, after: FeatureMoments) -> float:
    """Mean distance that the features moved in mean and standard deviation, in units of the latter.

    >>> one, two = torch.tensor([1.0]), torch.tensor([2.0])
    >>> shift_between([(one, two)], [(two, two)])
    0.5
    """
    moved = [
        torch.hypot(mean - old_mean, std - old_std) / old_std.clamp(min=1e-12)
        for (old_mean, old_std), (mean, std) in zip(before, after, strict=True)
    ]
    return torch.cat(moved).mean().item()


def probe_along_gradient(
    model: nn.Module, images: Tensor, labels: Tensor, lr: float
) -> Iterator[tuple[float, float, float]]:
    """Yield at each distance: the loss, the change of the gradient, and that change per unit of distance.

    The weights are restored afterwards.
    """

    def loss_and_gradient() -> tuple[float, list[Tensor]]:
        loss = F.cross_entropy(model(images), labels)
        return loss.item(), list(torch.autograd.grad(loss, weights))

    weights = list(model.parameters())
    start = [weight.detach().clone() for weight in weights]
    _, gradient = loss_and_gradient()
    length = _length(gradient)
    for reach in REACH:
        with torch.no_grad():
            for weight, origin, slope in zip(weights, start, gradient, strict=True):
                weight.copy_(origin - reach * lr * slope)
        loss, there = loss_and_gradient()
        change = _length([a - b for a, b in zip(there, gradient, strict=True)])
        yield _finite(loss), _finite(change), _finite(change / max(reach * lr * length, 1e-12))
    with torch.no_grad():
        for weight, origin in zip(weights, start, strict=True):
            weight.copy_(origin)


def _length(vectors: list[Tensor]) -> float:
    return float(torch.cat([vector.flatten() for vector in vectors]).norm())


def _finite(value: float) -> float:
    return min(value, LARGEST) if math.isfinite(value) else LARGEST
