"""Prints of tensors: four numbers in which a change of any of the numbers looked at shows, though the rms be the same.

Each is a sum of a sample of the numbers, with signs that look random and are always the same. A sign belongs to a
place: along the second axis, which is time in a text, places are counted on from one call to the next. So the prints of
a text are the same whether a model is given it at once or token by token.
"""

import functools
import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from normscope.diagnostics.record import FINGERPRINT_SIZE

_ROWS = 4  # of the first axis
_REST = 32  # places of all axes after the second together
_DENSE = 16  # so many places along the second axis, then half as many of each twice as long stretch
_FURTHEST = 1 << 20


class Fingerprint:
    """The prints of what a module gave, over all of its calls.

    >>> whole, parts = Fingerprint(), Fingerprint()
    >>> x = torch.randn(2, 40, 8)
    >>> whole.add(x)
    >>> for part in x.split([30, 1, 1, 8], dim=1):
    ...     parts.add(part)
    >>> np.allclose(whole.finish(), parts.finish(), rtol=1e-12)
    True
    >>> other = Fingerprint()
    >>> other.add(torch.cat([x[:, :36], x[:, 36:37].flip(2), x[:, 37:]], dim=1))  # the same rms, mean and extremes
    >>> np.allclose(whole.finish(), other.finish(), rtol=1e-3)
    False
    """

    def __init__(self) -> None:
        self._sums = np.zeros(FINGERPRINT_SIZE)
        self._count = 0
        self._place = 0

    def add(self, x: Tensor) -> None:
        """One more call's tensor."""
        if x.numel() == 0:
            return
        x = x.detach()
        if x.dim() < 3:  # there is no time, so the calls are
            x = x.reshape(-1, 1, x.shape[-1] if x.dim() else 1)
        length, each = x.shape[1], max(1, round(_REST ** (1 / (x.dim() - 2))))
        index = [slice(None, None, -(-x.shape[0] // _ROWS)), slice(None)]
        index += [slice(None, None, -(-size // each)) for size in x.shape[2:]]
        places = _places(self._place, self._place + length)
        if len(places):
            some = x[tuple(index)]
            some = some if len(places) == length else some.index_select(1, places.to(x.device))
            numbers = some.cpu().double().numpy().reshape(len(some), len(places), -1)
            with np.errstate(invalid="ignore"):  # of infinities with both signs
                self._sums += numbers.reshape(-1) @ _signs(len(numbers), self._place, length, numbers.shape[2])
            self._count += numbers.size
        self._place += length

    def finish(self) -> tuple[float, ...]:
        """The prints, divided by the root of how many numbers were looked at; nothing if there were none."""
        return tuple(float(value) / math.sqrt(self._count) for value in self._sums) if self._count else ()


@functools.lru_cache(maxsize=256)
def _places(start: int, stop: int) -> Tensor:
    """Those of the places from start to stop that are looked at, counted from start."""
    known = _looked_at()
    return known[(known >= start) & (known < stop)] - start


@functools.cache
def _looked_at() -> Tensor:
    """Always the same places, and fewer the further they are."""
    places, step, stop = list(range(_DENSE)), 2, _DENSE
    while stop < _FURTHEST:
        places += range(stop, 2 * stop, step)
        stop, step = 2 * stop, 2 * step
    return torch.tensor(places)


@functools.lru_cache(maxsize=256)
def _signs(rows: int, start: int, length: int, rest: int) -> NDArray[np.float64]:
    """Plus or minus one for each number that is looked at, in each print."""
    first, second, last = _signs_along()
    places = (_places(start, start + length).numpy() + start) % len(second)
    both = first[:rows, None] * second[places]
    found: NDArray[np.float64] = (both[:, :, None] * last[:rest]).reshape(-1, FINGERPRINT_SIZE)
    return found


@functools.cache
def _signs_along() -> NDArray[np.float64]:
    """Plus or minus one for each axis (first, second, rest), place and print."""
    bits = np.random.default_rng(2026).integers(0, 2, (3, 4096, FINGERPRINT_SIZE))
    return (2 * bits - 1).astype(np.float64)
