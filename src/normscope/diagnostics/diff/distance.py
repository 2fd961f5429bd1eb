"""How far apart two tensors are, by their figures; and how far they may be, by their types."""

import math
from collections.abc import Sequence

from normscope.diagnostics.record import TensorStats, XrayRecord

EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
"""The spacing of the numbers of each type next to 1."""
COARSEST = 2.0**-3  # of the types of eight bits and fewer


def coarsest(records: Sequence[XrayRecord]) -> tuple[str, float]:
    """The coarsest type of outputs and weights that the records have, and its spacing next to 1."""
    seen = {module.dtype for record in records for module in record.modules if module.dtype is not None}
    seen |= {p.dtype for record in records for module in record.modules for p in module.parameters}
    sizes = {dtype: EPS.get(dtype, COARSEST) for dtype in sorted(seen)} or {"float32": EPS["float32"]}
    dtype = max(sizes, key=lambda name: sizes[name])
    return dtype, sizes[dtype]


def distance(
    one: TensorStats | None,
    other: TensorStats | None,
    prints: Sequence[float] = (),
    other_prints: Sequence[float] = (),
    noise: float = 0.0,
) -> float | None:
    """How far apart two tensors are, as a share of their size, by their figures and prints; None without figures.

    Of rms, mean, extremes and prints the one that differs most counts. A difference of `noise` or less is none.
    """
    if one is None or other is None:
        return None
    if _total(one) != _total(other) or one.non_finite != other.non_finite:
        return math.inf
    gaps = [abs(one.rms - other.rms), abs(one.mean - other.mean)]
    if prints and other_prints and not one.non_finite:
        gaps.append(_rms_gap(prints, other_prints))
    edges = max(abs(one.min - other.min), abs(one.max - other.max))
    return max(_share(max(gaps), max(one.rms, other.rms), noise), _share(edges, max(one.abs_max, other.abs_max), noise))


def differ_in_size(one: TensorStats | None, other: TensorStats | None) -> bool:
    """Whether one of two tensors has more numbers than the other."""
    return (
        one is not None and other is not None and _total(one) != _total(other) and -1 not in map(_total, (one, other))
    )


def distance_of_prints(prints: Sequence[float], other_prints: Sequence[float]) -> float | None:
    """The same by the prints alone, which are about as large as the numbers; None if there are none."""
    if not prints or not other_prints:
        return None
    nothing = [0.0] * len(prints)
    return _share(_rms_gap(prints, other_prints), max(_rms_gap(p, nothing) for p in (prints, other_prints)), 0.0)


def _rms_gap(prints: Sequence[float], other_prints: Sequence[float]) -> float:
    return math.dist(prints, other_prints) / math.sqrt(len(prints))


def _share(gap: float, size: float, noise: float) -> float:
    return max(0.0, gap - noise) / size if size else 0.0


def _total(signal: TensorStats) -> int:
    return round(signal.count / (1 - signal.non_finite)) if signal.non_finite < 1 else -1
