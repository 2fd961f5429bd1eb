"""What is gathered of one module or function while the x-ray looks; at the end it becomes a `record.ModuleRecord`."""

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from normscope.diagnostics import record
from normscope.diagnostics.collect.attention import AttentionAccumulator
from normscope.diagnostics.collect.fingerprints import Fingerprint
from normscope.diagnostics.collect.norms import NormAccumulator
from normscope.ops.moments import ColumnStatistics, Moments

_OUTLIERS = 5
_CALLS = 64
_MANY_ROWS = 256  # of values of a unit, from which on there are enough to call it dead


@dataclass
class UnitAccumulator:
    """The units along one axis, over many batches: how large each was, and whether it ever woke."""

    columns: ColumnStatistics
    saturated: "np.ndarray[tuple[int], np.dtype[np.int64]] | None" = None

    def finish(self, after: str | None = None) -> record.UnitStats:
        rows = max(1, self.columns.rows)
        rms = np.sqrt(self.columns.squares / rows)
        largest = np.argsort(-self.columns.max_abs, kind="stable")[:_OUTLIERS]
        stuck = None if self.saturated is None else int((self.saturated >= self.columns.rows).sum())
        return record.UnitStats(
            count=len(rms),
            samples=self.columns.rows,
            dead=int((self.columns.nonzero == 0).sum()),
            saturated=stuck,
            median_rms=float(np.median(rms)) if len(rms) else 0.0,
            outliers=tuple((int(i), float(rms[i]), float(self.columns.max_abs[i])) for i in largest),
            input_module=after,
        )

    @property
    def idle(self) -> float:
        """How much it tells of units that do nothing: their share, less where little of them was seen."""
        dead = int((self.columns.nonzero == 0).sum())
        stuck = 0 if self.saturated is None else int((self.saturated >= self.columns.rows).sum())
        rows = self.columns.rows
        return max(dead, stuck) / max(1, len(self.columns.nonzero)) * rows / (rows + _MANY_ROWS)


class UnitsBySource:
    """The units of an activation, apart for each that feeds it: in one model it may stand at several places, and what
    is dead at one of them lives at another."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, int], UnitAccumulator] = {}

    def add(self, tensor: Tensor, axis: int, bounds: tuple[float, float] | None, after: str) -> None:
        place = (after, tensor.shape[axis])
        self._places[place] = add_units(self._places.get(place), tensor, axis, bounds)

    def finish(self) -> record.UnitStats:
        """The place with the most that do nothing."""
        (after, _), worst = max(self._places.items(), key=lambda item: item[1].idle)
        return worst.finish(after if len(self._places) > 1 and after else None)


@dataclass
class JoinAccumulator:
    stream: Moments = field(default_factory=Moments)
    branch: Moments = field(default_factory=Moments)
    total: Moments = field(default_factory=Moments)
    from_stream: str | None = None
    from_branch: str | None = None
    normalized: str | None = None

    def finish(self) -> record.ResidualJoin:
        return record.ResidualJoin(
            self.stream.rms, self.branch.rms, self.total.rms, self.from_stream, self.from_branch, self.normalized
        )


@dataclass
class ModuleAccumulator:
    """The figures of one module so far. The fields are those of `record.ModuleRecord`."""

    name: str
    kind: str
    is_function: bool = False
    same_as: str | None = None
    order: int | None = None
    calls: int = 0
    inputs: tuple[tuple[int, ...], ...] = ()
    outputs: tuple[tuple[int, ...], ...] = ()
    dtype: str | None = None
    training: bool | None = None
    flops: int = 0
    uncounted: bool = False
    """Whether something in it multiplies in a way that is not counted."""
    bytes: int = 0
    entering: Moments | None = None
    output: Moments | None = None
    gradient: Moments | None = None
    saturated: int | None = None
    made_unreal: bool = False
    made_unreal_gradient: bool = False
    given_unreal: bool = False
    seen_unreal: bool = False
    only_hides: bool = False
    without_grad: bool = False
    """Whether its last output was made without gradients: if a checkpoint makes it again, they will come then."""
    fed_by: dict[str, None] = field(default_factory=dict)
    units: UnitsBySource | None = None
    features: UnitAccumulator | None = None
    norm: NormAccumulator | None = None
    attention: AttentionAccumulator | None = None
    joins: list[JoinAccumulator] = field(default_factory=list)
    by_call: list[float] = field(default_factory=list)
    prints: Fingerprint = field(default_factory=Fingerprint)
    gradient_prints: Fingerprint = field(default_factory=Fingerprint)
    entering_prints: Fingerprint = field(default_factory=Fingerprint)

    def add_output(self, moments: Moments, tensor: Tensor) -> None:
        self.prints.add(tensor)
        self.output = moments if self.output is None else self.output.merge(moments)
        if len(self.by_call) < _CALLS:
            self.by_call.append(moments.rms)

    def add_entering(self, moments: Moments) -> None:
        self.entering = moments if self.entering is None else self.entering.merge(moments)

    def add_gradient(self, moments: Moments, tensor: Tensor) -> None:
        self.gradient_prints.add(tensor)
        self.gradient = moments if self.gradient is None else self.gradient.merge(moments)

    def join(self, index: int) -> JoinAccumulator:
        while len(self.joins) <= index:
            self.joins.append(JoinAccumulator())
        return self.joins[index]

    def finish(self, batches: int, parameters: tuple[record.ParameterRecord, ...]) -> record.ModuleRecord:
        each = max(1, batches)
        count = 0 if self.output is None else self.output.count + self.output.non_finite
        calls_a_batch = -(-self.calls // each)
        return record.ModuleRecord(
            name=self.name,
            kind=self.kind,
            is_function=self.is_function,
            order=self.order,
            calls=self.calls,
            alias_of=self.same_as,
            input_shapes=self.inputs,
            output_shapes=self.outputs,
            dtype=self.dtype,
            training=self.training,
            flops=None if self.uncounted else self.flops // each,
            output_bytes=self.bytes // each,
            input=signal_of(self.entering),
            output=signal_of(self.output),
            gradient=signal_of(self.gradient),
            saturated=None if self.saturated is None else self.saturated / max(1, count),
            produced_non_finite=self.made_unreal,
            produced_non_finite_gradient=self.made_unreal_gradient,
            received_non_finite=self.given_unreal,
            only_negative_infinity=self.only_hides,
            fed_by=tuple(self.fed_by),
            units=None if self.units is None else self.units.finish(),
            features=None if self.features is None else self.features.finish(),
            norm=None if self.norm is None else self.norm.finish(),
            attention=None if self.attention is None else self.attention.finish(),
            joins=tuple(join.finish() for join in self.joins),
            parameters=parameters,
            rms_by_call=tuple(self.by_call[:calls_a_batch]) if calls_a_batch > 1 else (),
            fingerprint=self.prints.finish(),
            gradient_fingerprint=self.gradient_prints.finish(),
            input_fingerprint=self.entering_prints.finish(),
        )


def signal_of(moments: Moments | None) -> record.TensorStats | None:
    if moments is None:
        return None
    total = max(1, moments.count + moments.non_finite)
    return record.TensorStats(
        count=moments.count,
        mean=moments.mean,
        rms=moments.rms,
        variance=moments.variance,
        min=moments.minimum if moments.count else 0.0,
        max=moments.maximum if moments.count else 0.0,
        kurtosis=moments.kurtosis,
        zeros=moments.zeros / total,
        non_finite=moments.non_finite / total,
    )


def as_rows(tensor: Tensor, axis: int) -> Tensor:
    """The tensor as a matrix with one column for each place of the axis."""
    tensor = tensor.detach()
    if axis not in (-1, tensor.dim() - 1):
        tensor = tensor.movedim(axis, -1)
    if not tensor.dim():
        return tensor.reshape(1, 1)
    return tensor.reshape(math.prod(tensor.shape[:-1]), tensor.shape[-1])  # -1 is not to be had of no numbers at all


def add_units(
    accumulator: UnitAccumulator | None, tensor: Tensor, axis: int, bounds: tuple[float, float] | None
) -> UnitAccumulator:
    """One more batch of units, or the first."""
    rows = as_rows(tensor, axis)
    width = rows.shape[1]
    if accumulator is None or len(accumulator.columns.squares) != width:  # another width: it is another layer's turn
        accumulator = UnitAccumulator(
            ColumnStatistics(width), None if bounds is None else np.zeros(width, dtype=np.int64)
        )
    accumulator.columns.add(rows)
    if bounds is not None and accumulator.saturated is not None:
        accumulator.saturated += is_saturated(rows, bounds).sum(0).cpu().numpy()
    return accumulator


def is_saturated(values: Tensor, bounds: tuple[float, float]) -> Tensor:
    """Where a bounded function is at its flat ends: within 1% of its range, where it slopes 4% of its most or less."""
    minimum, maximum = bounds
    edge = 0.01 * (maximum - minimum)
    return torch.logical_or(values < minimum + edge, values > maximum - edge)
