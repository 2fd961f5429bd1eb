"""Probes of a network in training: covariate shift, and the loss along the gradient direction."""

import copy
import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normscope.lab.trials.conv_stack import ConvStack

REACH = tuple(2.0 ** (power / 2) for power in range(-2, 5))
"""Distances along the gradient, in training steps: from half a step to four."""
LARGEST = 1e6
"""Replaces non-finite values."""
FeatureMoments = list[tuple[Tensor, Tensor]]
"""Mean and standard deviation of each feature, for every layer."""


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
