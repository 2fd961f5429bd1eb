"""The result of comparing two records: per module, the first divergence, and overall."""

import math
from dataclasses import dataclass

from normscope.diagnostics.diff.distance import EPS, LOW_PRECISION_EPS


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

    def exceeds(self, *distances: float | None) -> bool:
        """Whether one of the distances exceeds the tolerance."""
        return any(distance is not None and distance > self.tolerance for distance in distances)

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
