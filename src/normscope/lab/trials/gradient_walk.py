"""Loss and gradient along the gradient direction."""

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

REACH = tuple(2.0 ** (power / 2) for power in range(-2, 5))
"""Distances along the gradient, in training steps: from half a step to four."""
LARGEST = 1e6
"""Replaces non-finite values."""


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
