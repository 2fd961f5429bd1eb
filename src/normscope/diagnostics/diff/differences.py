"""The result of comparing two records, and the relative distance of two tensors from their statistics."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeGuard

from normscope.diagnostics.record import XrayRecord
from normscope.diagnostics.stats.tensors import TensorStats

EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
"""Machine epsilon of each dtype."""
LOW_PRECISION_EPS = 2.0**-3  # 8 bits and fewer


@dataclass(frozen=True)
class ModuleDiff:
    """How one module, or a function inside one, differs between two records.

    Distances are relative: 0 for equal tensors, infinite for tensors with different shapes or different non-finite
    values; None if there is nothing to compare.

    Args:
        name, kind: of the module.
        order: execution order, in the first record if it ran there; None if it never ran.
        only_in: 0 or 1 if only the first or second record has it; otherwise None.
        repeated: whether a batch calls it several times.
        input, output, gradient: distances of its input, of its output, and of the gradient of its output.
        weights, weight_gradients: the largest distance of its own parameters.
        weights_differ: whether its own parameters, of the same dtype, differ in any bit.
        shapes_differ: whether an infinite distance is due to different shapes; otherwise to non-finite values.
        ran_only_in: 0 or 1 if both records have it, but it ran only in the first or second; otherwise None.
        same_input: whether its input is known to be identical, provided that the modules before it are.
        remarks: other differences: shapes, dtypes, calls, mode.
    """

    name: str
    kind: str
    order: int | None
    only_in: int | None = None
    repeated: bool = False
    input: float | None = None
    output: float | None = None
    gradient: float | None = None
    weights: float | None = None
    weight_gradients: float | None = None
    weights_differ: bool = False
    shapes_differ: bool = False
    ran_only_in: int | None = None
    same_input: bool = False
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Divergence:
    """The first divergence: its module, the distance there, and the likely reason."""

    module: str
    distance: float
    why: str


@dataclass(frozen=True)
class RecordDiff:
    """The differences between two records.

    Args:
        labels: names of the two records.
        tolerance: largest distance that counts as rounding.
        dtype: coarsest dtype in the two.
        modules: all modules, in execution order.
        forward, backward: first divergence in the forward and in the backward pass; None without one.
        remarks: overall differences, such as the number of batches or the loss.
    """

    labels: tuple[str, str]
    tolerance: float
    dtype: str
    modules: tuple[ModuleDiff, ...]
    forward: Divergence | None
    backward: Divergence | None
    remarks: tuple[str, ...] = ()

    def __str__(self) -> str:
        """What `normscope diff` prints."""
        from normscope.diagnostics.report.diff import render_diff

        return render_diff(self).plain.rstrip("\n")

    def exceeds(self, distance: float | None) -> TypeGuard[float]:
        """Whether a distance is known and exceeds the tolerance."""
        return distance is not None and distance > self.tolerance

    @property
    def is_default_tolerance(self) -> bool:
        """Whether the tolerance is the default for the dtype."""
        return self.tolerance == math.sqrt(EPS.get(self.dtype, LOW_PRECISION_EPS))

    @property
    def diverges(self) -> bool:
        """Whether any module computes something different, ignoring modules that only one record has."""
        return self.forward is not None or self.backward is not None

    def _repr_html_(self) -> str:
        """The comparison as text, for notebooks."""
        from normscope.diagnostics.report.diff import render_diff
        from normscope.render.notebook import preformatted

        return preformatted(render_diff(self, width=100).plain)


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
    by_size = _relative(max(gaps), max(one.rms, other.rms), noise)
    return max(by_size, _relative(edges, max(one.abs_max, other.abs_max), noise))


def differ_in_numel(one: TensorStats | None, other: TensorStats | None) -> bool:
    """Whether two tensors have different numbers of elements."""
    sizes = {_numel(stats) for stats in (one, other) if stats is not None}
    return len(sizes) == 2 and -1 not in sizes


def fingerprint_distance(fingerprint: Sequence[float], other_fingerprint: Sequence[float]) -> float | None:
    """Relative distance from the fingerprints alone, which scale like the values; None without fingerprints."""
    if not fingerprint or not other_fingerprint:
        return None
    size = max(_rms_gap(p, [0.0] * len(fingerprint)) for p in (fingerprint, other_fingerprint))
    return _relative(_rms_gap(fingerprint, other_fingerprint), size, 0.0)


def _rms_gap(fingerprint: Sequence[float], other_fingerprint: Sequence[float]) -> float:
    return math.dist(fingerprint, other_fingerprint) / math.sqrt(len(fingerprint))


def _relative(gap: float, size: float, noise: float) -> float:
    return max(0.0, gap - noise) / size if size else 0.0


def _numel(signal: TensorStats) -> int:
    return round(signal.count / (1 - signal.non_finite)) if signal.non_finite < 1 else -1
