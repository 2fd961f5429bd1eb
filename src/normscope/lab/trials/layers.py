"""The norms of normscope and of torch, under the names that they share, and how far two results are apart."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from normscope.blocks import norm

LIBRARIES: Mapping[str, Any] = {"normscope": norm, "torch": nn}
"""`LIBRARIES[name].LayerNorm(64)`: what is said of a norm is asked of both."""


def rms(x: Tensor) -> float:
    """The root mean square of all numbers.

    >>> import torch
    >>> rms(torch.tensor([3.0, -4.0, 0.0, 0.0]))
    2.5
    """
    return x.detach().double().square().mean().sqrt().item()


def rms_difference(x: Tensor, y: Tensor) -> float:
    """The root mean square of the difference; of what was normalized, whose size is about 1, it is a share."""
    return rms(x.detach().double() - y.detach().double())


def max_difference(x: Tensor, y: Tensor) -> float:
    """The greatest difference of all numbers, as an identity must not have any."""
    return (x.detach().double() - y.detach().double()).abs().max().item()
