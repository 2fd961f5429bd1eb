"""The norms of normscope and of torch under their common names, and distances between tensors."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from normscope.blocks import norm

LIBRARIES: Mapping[str, Any] = {"normscope": norm, "torch": nn}
"""`LIBRARIES[name].LayerNorm(64)`: claims about norms are tested in both."""


def library_variants(options: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the settings of each option in both libraries, named as in `in_both`."""
    both = [(library, name) for library in LIBRARIES for name in options]
    return {f"{library} {name}": {"library": library, **options[name]} for library, name in both}


def in_both(*names: str) -> list[str]:
    """Return the names of variants in both libraries.

    >>> in_both("LayerNorm")
    ['normscope LayerNorm', 'torch LayerNorm']
    """
    return [f"{library} {name}" for name in names for library in LIBRARIES]


def rms(x: Tensor) -> float:
    """Root mean square of all values.

    >>> import torch
    >>> rms(torch.tensor([3.0, -4.0, 0.0, 0.0]))
    2.5
    """
    return x.detach().double().square().mean().sqrt().item()


def rms_difference(x: Tensor, y: Tensor) -> float:
    """Root mean square of the difference; relative, for normalized tensors of rms 1."""
    return rms(x.detach().double() - y.detach().double())


def max_difference(x: Tensor, y: Tensor) -> float:
    """Maximum absolute difference."""
    return (x.detach().double() - y.detach().double()).abs().max().item()
