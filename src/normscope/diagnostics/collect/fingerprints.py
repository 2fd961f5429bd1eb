"""Fingerprints of tensors: a few numbers that change if any sampled value changes, even if the rms does not.

Each number is a sum of sampled values with fixed pseudo-random signs. A sign belongs to a position. Along the second
axis, which is time in a sequence, positions continue from one call to the next, so the fingerprint is the same whether
a model reads a sequence at once or token by token.
"""

import functools
import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from normscope.diagnostics.record import FINGERPRINT_SIZE

_MAX_ROWS = 4  # samples along the first axis
_MAX_REST = 32  # samples over all axes after the second
_DENSE = 16  # every position up to here along the second axis, then half as many for each doubling
_MAX_POSITION = 1 << 20


class Fingerprint:
    """The fingerprint of a module's output, over all of its calls.

    >>> whole, parts = Fingerprint(), Fingerprint()
    >>> x = torch.randn(2, 40, 8)
    >>> whole.add(x)
    >>> for part in x.split([30, 1, 1, 8], dim=1):
    ...     parts.add(part)
    >>> np.allclose(whole.finish(), parts.finish(), rtol=1e-12)
    True
    >>> other = Fingerprint()
    >>> other.add(torch.cat([x[:, :36], x[:, 36:37].flip(2), x[:, 37:]], dim=1))  # same rms, mean and extremes
    >>> np.allclose(whole.finish(), other.finish(), rtol=1e-3)
    False
    """

    def __init__(self) -> None:
        self._sums = np.zeros(FINGERPRINT_SIZE)
        self._count = 0
        self._position = 0

    def add(self, x: Tensor) -> None:
        """Add the tensor of one call."""
        if x.numel() == 0:
            return
        x = x.detach()
        if x.dim() < 3:  # no time axis: each call is one step
            x = x.reshape(-1, 1, x.shape[-1] if x.dim() else 1)
        length, each = x.shape[1], max(1, round(_MAX_REST ** (1 / (x.dim() - 2))))
        index = [slice(None, None, -(-x.shape[0] // _MAX_ROWS)), slice(None)]
        index += [slice(None, None, -(-size // each)) for size in x.shape[2:]]
        positions = _sampled_positions(self._position, self._position + length)
        if len(positions):
            sample = x[tuple(index)]
            sample = sample if len(positions) == length else sample.index_select(1, positions.to(x.device))
            values = sample.cpu().double().numpy().reshape(len(sample), len(positions), -1)
            with np.errstate(invalid="ignore"):  # infinities of both signs
                self._sums += values.reshape(-1) @ _signs(len(values), self._position, length, values.shape[2])
            self._count += values.size
        self._position += length

    def finish(self) -> tuple[float, ...]:
        """Return the sums, divided by the square root of the number of samples; empty if there are none."""
        return tuple(float(value) / math.sqrt(self._count) for value in self._sums) if self._count else ()


@functools.lru_cache(maxsize=256)
def _sampled_positions(start: int, stop: int) -> Tensor:
    """Return the sampled positions from start to stop, relative to start."""
    known = _all_sampled_positions()
    return known[(known >= start) & (known < stop)] - start


@functools.cache
def _all_sampled_positions() -> Tensor:
    """Return the sampled positions, which become sparser with distance."""
    positions, step, stop = list(range(_DENSE)), 2, _DENSE
    while stop < _MAX_POSITION:
        positions += range(stop, 2 * stop, step)
        stop, step = 2 * stop, 2 * step
    return torch.tensor(positions)


@functools.lru_cache(maxsize=256)
def _signs(rows: int, start: int, length: int, rest: int) -> NDArray[np.float64]:
    """Return plus or minus one for each sampled value and each number of the fingerprint."""
    first, second, last = _signs_along()
    positions = (_sampled_positions(start, start + length).numpy() + start) % len(second)
    both = first[:rows, None] * second[positions]
    found: NDArray[np.float64] = (both[:, :, None] * last[:rest]).reshape(-1, FINGERPRINT_SIZE)
    return found


@functools.cache
def _signs_along() -> NDArray[np.float64]:
    """Return plus or minus one for each axis (first, second, rest), position and number of the fingerprint."""
    bits = np.random.default_rng(2026).integers(0, 2, (3, 4096, FINGERPRINT_SIZE))
    return (2 * bits - 1).astype(np.float64)
