"""Mix: a sum of two tensors with learned factors."""

import math

import torch
from torch import Tensor, nn

from normscope.blocks.checks import check_tensor
from normscope.blocks.torch_tools import BaseModule, is_fx_proxy
from normscope.checks import is_number, short_repr
from normscope.errors import ConfigError, ShapeError


class Mix(BaseModule):
    r"""A sum of two tensors with learned factors, such as a residual stream and an earlier state of it.

    Formula:
        z = a x + b y      a, b: one number each

    Scope:
        None: each value separately.

    Shapes:
        x: any. y, z: same as x. a, b: (1).

    Args:
        a: initial factor of x; None for no factor.
        b: initial factor of y.

    Example:
        >>> Mix(None, 0.5)(torch.tensor([2.0, 4.0]), torch.tensor([2.0, 2.0])).tolist()
        [3.0, 5.0]

    Paper:
        Bachlechner et al. 2020, "ReZero is All You Need: Fast Convergence at Large Depth".
    """

    def __init__(self, a: float | None, b: float) -> None:
        super().__init__()
        for name, factor in (("a", 1.0 if a is None else a), ("b", b)):
            if not (is_number(factor) and math.isfinite(factor)):
                raise ConfigError(f"{name}={short_repr(factor)} must be a finite number")
        self.initial = (a, b)
        self.a = None if a is None else nn.Parameter(torch.empty(1))
        self.b = nn.Parameter(torch.empty(1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        a, b = self.initial
        if a is not None and self.a is not None:
            nn.init.constant_(self.a, a)
        nn.init.constant_(self.b, b)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        if is_fx_proxy(x):
            return self._fx_call(x, y)
        check_tensor(x, self)
        check_tensor(y, self)
        if x.shape != y.shape:
            raise ShapeError(f"{self} takes tensors of equal shape, but got {tuple(x.shape)} and {tuple(y.shape)}")
        return torch.addcmul(x if self.a is None else self.a * x, self.b, y)

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={factor}" for name, factor in zip("ab", self.initial, strict=True))


def interpolate(first: float, last: float, count: int) -> list[float]:
    """Return `count` evenly spaced numbers from `first` to `last`.

    >>> interpolate(1.0, 0.5, 3), interpolate(1.0, 0.5, 1)
    ([1.0, 0.75, 0.5], [1.0])
    """
    return [first + (last - first) * i / max(1, count - 1) for i in range(count)]
