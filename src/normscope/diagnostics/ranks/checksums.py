"""Checksums of tensors that tell whether two ranks have the same values, and by about how much they differ."""

import functools
import hashlib
import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

_WIDTH = 1 << 14
_ROWS = 64
_NUMBERS = 4
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int32}
_MASK = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15  # odd, so that no information is lost


@dataclass(frozen=True)
class Check:
    """What a rank tells the others of a tensor.

    Args:
        checksum: of all its bits.
        rms: of its values.
        projections: sums of all values with pseudo-random signs, over the root of their number. The rms of the
            difference of two tensors is about that of the differences of these.

    >>> Check.parse(str(Check("fe01", 0.5, (1.0, 2.0)))).projections
    (1.0, 2.0)
    """

    checksum: str
    rms: float
    projections: tuple[float, ...]

    def __str__(self) -> str:
        return " ".join([self.checksum, *map(repr, (self.rms, *self.projections))])

    @classmethod
    def parse(cls, text: str) -> "Check":
        own, rms, *projections = text.split()
        return cls(own, float(rms), tuple(map(float, projections)))


def check_tensor(x: Tensor) -> Check:
    """Check a tensor: any difference of any value changes the checksum.

    >>> x = torch.linspace(-1, 1, 40_000)
    >>> y = x.clone()
    >>> y[30_000] += 1e-6
    >>> check_tensor(x) == check_tensor(x.clone()), check_tensor(x) == check_tensor(y)
    (True, False)
    >>> abs(difference_of([check_tensor(x), check_tensor(1.01 * x)]) - 0.01) < 0.005
    True
    """
    flat = _flat(x)
    sums, squares = torch.zeros(_NUMBERS, dtype=torch.float64), 0.0
    for i, part in enumerate(flat.split(_WIDTH * _ROWS)):
        rows = _rows(part.double() if part.device.type != "mps" else part.cpu().double())  # MPS has no float64
        projected = rows @ _signs().to(rows.device) * _row_signs(len(rows), i).to(rows.device)
        sums += projected.sum(0).cpu()
        squares += float(rows.square().sum())
    root = math.sqrt(max(1, flat.numel()))
    return Check(checksum(x), math.sqrt(squares) / root, tuple(float(value) / root for value in sums))


def checksum(x: Tensor) -> str:
    """Return the checksum alone."""
    digest = hashlib.blake2b(f"{x.dtype} {tuple(x.shape)}".encode(), digest_size=8)
    for part in _flat(x).split(_WIDTH * _ROWS):
        digest.update(_bits_sum(part))
    return digest.hexdigest()


def _flat(x: Tensor) -> Tensor:
    x = x.detach()
    return (torch.view_as_real(x) if x.is_complex() else x).reshape(-1)


def difference_of(checks: list[Check]) -> float:
    """Estimate the largest difference from the first tensor, as its rms over the larger rms of the two."""
    first, largest = checks[0], 0.0
    for other in checks[1:]:
        pairs = zip(first.projections, other.projections, strict=True)
        size = math.sqrt(sum((a - b) ** 2 for a, b in pairs) / _NUMBERS)
        largest = max(largest, size / (max(first.rms, other.rms) or 1.0))
    return largest


def _bits_sum(part: Tensor) -> bytes:
    """Return a weighted sum of the bits of each row, modulo 2**64: exact, so that the order of addition is free."""
    integers = part.contiguous().view(_INTEGERS[part.element_size()] if part.dtype != torch.bool else torch.uint8)
    rows = (_rows(integers.long()) * _multipliers().to(part.device)).sum(1)
    return rows.cpu().numpy().tobytes()


def _rows(values: Tensor) -> Tensor:
    """Return the values as rows of a fixed width; zeros fill the last one."""
    return F.pad(values, (0, -values.numel() % _WIDTH)).view(-1, _WIDTH)


@functools.cache
def _multipliers() -> Tensor:
    odd = np.random.default_rng(2026).integers(0, _MASK, _WIDTH, dtype=np.uint64, endpoint=True) | np.uint64(1)
    return torch.from_numpy(odd.view(np.int64))


@functools.cache
def _signs() -> Tensor:
    return torch.from_numpy(2.0 * np.random.default_rng(2027).integers(0, 2, (_WIDTH, _NUMBERS)) - 1)


def _row_signs(rows: int, part: int) -> Tensor:
    """Return a sign for each row, so that equal rows don't add up."""
    numbers = [((part * _ROWS + i + 1) * _STEP & _MASK) >> 63 for i in range(rows)]
    return 2.0 * torch.tensor(numbers, dtype=torch.float64)[:, None] - 1
