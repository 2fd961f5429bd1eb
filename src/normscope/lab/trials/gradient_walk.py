"""A walk along the gradient and back: the loss on the way, and how far the gradient holds."""

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

REACH = tuple(2.0 ** (power / 2) for power in range(-2, 5))
"""How far to go along the gradient, in steps of training: from half a step to four."""
MOST = 1e6
"""What counts in the place of a figure that is not finite."""


def probe_along_gradient(
    model: nn.Module, images: Tensor, labels: Tensor, lr: float
) -> Iterator[tuple[float, float, float]]:
    """At each distance: the loss, how much the gradient has changed, and that for each unit of distance.

    The weights are where they were once the walk is over.
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
    return min(value, MOST) if math.isfinite(value) else MOST
