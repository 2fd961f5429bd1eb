"""Relative distance of two tensors from their statistics, and the tolerance for their dtype."""

import math
from collections.abc import Sequence

from normscope.diagnostics.record import TensorStats, XrayRecord

EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
"""Machine epsilon of each dtype."""
LOW_PRECISION_EPS = 2.0**-3  # 8 bits and fewer


def coarsest_dtype(records: Sequence[XrayRecord]) -> tuple[str, float]:
    """The coarsest dtype of outputs and weights in the records, and its machine epsilon."""
    seen = {module.dtype for record in records for module in record.modules if module.dtype is not None}
    seen |= {p.dtype for record in records for module in record.modules for p in module.parameters}
    sizes = {dtype: EPS.get(dtype, LOW_PRECISION_EPS) for dtype in sorted(seen)} or {"float32": EPS["float32"]}
    dtype = max(sizes, key=lambda name: sizes[name])
    return dtype, sizes[dtype]


def tensor_distance(
    one: TensorStats | None,
    other: TensorStats | None,
    fingerprint: Sequence[float] = (),
    other_fingerprint: Sequence[float] = (),
    noise: float = 0.0,
) -> float | None:
    """Relative distance of two tensors, from their statistics and fingerprints; None without statistics.

    The largest difference of rms, mean, extremes and fingerprint counts. Differences up to `noise` are ignored.
    """
    if one is None or other is None:
        return None
    if _numel(one) != _numel(other) or one.non_finite != other.non_finite:
        return math.inf
    gaps = [abs(one.rms - other.rms), abs(one.mean - other.mean)]
    if fingerprint and other_fingerprint and not one.non_finite:
        gaps.append(_rms_gap(fingerprint, other_fingerprint))
    edges = max(abs(one.min - other.min), abs(one.max - other.max))
    return max(
        _relative(max(gaps), max(one.rms, other.rms), noise), _relative(edges, max(one.abs_max, other.abs_max), noise)
    )


def differ_in_numel(one: TensorStats | None, other: TensorStats | None) -> bool:
    """Whether two tensors have different numbers of elements."""
    return (
        one is not None and other is not None and _numel(one) != _numel(other) and -1 not in map(_numel, (one, other))
    )


def fingerprint_distance(fingerprint: Sequence[float], other_fingerprint: Sequence[float]) -> float | None:
    """Relative distance from the fingerprints alone, which scale like the values; None without fingerprints."""
    if not fingerprint or not other_fingerprint:
        return None
    zeros = [0.0] * len(fingerprint)
    return _relative(
        _rms_gap(fingerprint, other_fingerprint), max(_rms_gap(p, zeros) for p in (fingerprint, other_fingerprint)), 0.0
    )


def _rms_gap(fingerprint: Sequence[float], other_fingerprint: Sequence[float]) -> float:
    return math.dist(fingerprint, other_fingerprint) / math.sqrt(len(fingerprint))


def _relative(gap: float, size: float, noise: float) -> float:
    return max(0.0, gap - noise) / size if size else 0.0


def _numel(signal: TensorStats) -> int:
    return round(signal.count / (1 - signal.non_finite)) if signal.non_finite < 1 else -1
