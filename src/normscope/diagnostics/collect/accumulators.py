"""Accumulate the statistics of a module or function over calls and batches, and turn them into a `ModuleRecord`."""

import math
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from normscope.diagnostics import record
from normscope.diagnostics.collect.attention import AttentionAccumulator
from normscope.diagnostics.collect.fingerprints import Fingerprint
from normscope.diagnostics.collect.norms import NormAccumulator
from normscope.diagnostics.stats.tensors import ResidualJoin, TensorStats, UnitStats
from normscope.ops.moments import ColumnStatistics, Moments

_OUTLIERS = 5
_MAX_CALLS = 64
_ENOUGH_ROWS = 256  # a unit needs about this many samples to be called dead


@dataclass
class UnitAccumulator:
    """The units along one axis: how large each one was, and whether it was ever active."""

    columns: ColumnStatistics
    saturated: "np.ndarray[tuple[int], np.dtype[np.int64]] | None" = None

    def finish(self, input_module: str | None = None) -> UnitStats:
        rms = np.sqrt(self.columns.squares / max(1, self.columns.rows))
        largest = np.argsort(-self.columns.max_abs, kind="stable")[:_OUTLIERS]
        return UnitStats(
            count=len(rms),
            samples=self.columns.rows,
            dead=self._dead,
            saturated=self._always_saturated,
            median_rms=float(np.median(rms)) if len(rms) else 0.0,
            outliers=tuple((int(i), float(rms[i]), float(self.columns.max_abs[i])) for i in largest),
            input_module=input_module,
        )

    @property
    def _dead(self) -> int:
        return int((self.columns.nonzero == 0).sum())

    @property
    def _always_saturated(self) -> int | None:
        return None if self.saturated is None else int((self.saturated >= self.columns.rows).sum())

    @property
    def idle(self) -> float:
        """The fraction of inactive units, discounted if there are few samples."""
        rows = self.columns.rows
        inactive = max(self._dead, self._always_saturated or 0)
        return inactive / max(1, len(self.columns.nonzero)) * rows / (rows + _ENOUGH_ROWS)


class UnitsBySource:
    """The units of an activation, separately for each module that feeds it.

    A model may use one activation module in several places, and a unit may be dead in one and active in another.
    """

    def __init__(self) -> None:
        self._sources: dict[tuple[str, int], UnitAccumulator] = {}

    def add(self, tensor: Tensor, axis: int, bounds: tuple[float, float] | None, source: str) -> None:
        key = (source, tensor.shape[axis])
        self._sources[key] = add_units(self._sources.get(key), tensor, axis, bounds)

    def finish(self) -> UnitStats:
        """Return the statistics of the source with the most inactive units."""
        (source, _), worst = max(self._sources.items(), key=lambda item: item[1].idle)
        return worst.finish(source if len(self._sources) > 1 and source else None)


@dataclass
class JoinAccumulator:
    stream: Moments = field(default_factory=Moments)
    branch: Moments = field(default_factory=Moments)
    total: Moments = field(default_factory=Moments)
    from_stream: str | None = None
    from_branch: str | None = None
    normalized: str | None = None

    def finish(self) -> ResidualJoin:
        sizes = self.stream.rms, self.branch.rms, self.total.rms
        return ResidualJoin(*sizes, self.from_stream, self.from_branch, self.normalized)


@dataclass
class ModuleAccumulator:
    """The statistics of one module or function. Fields are named as in `record.ModuleRecord`."""

    name: str
    kind: str
    is_function: bool = False
    alias_of: str | None = None
    order: int | None = None
    calls: int = 0
    input_shapes: tuple[tuple[int, ...], ...] = ()
    output_shapes: tuple[tuple[int, ...], ...] = ()
    dtype: str | None = None
    training: bool | None = None
    flops: int | None = 0
    """None if a function inside has an unknown number of flops."""
    output_bytes: int = 0
    input: Moments | None = None
    output: Moments | None = None
    gradient: Moments | None = None
    saturated: int | None = None
    produced_non_finite: bool = False
    produced_non_finite_gradient: bool = False
    received_non_finite: bool = False
    has_non_finite: bool = False
    only_negative_infinity: bool = False
    without_grad: bool = False
    """Whether its last output was computed without gradients. If a checkpoint recomputes it, gradients follow."""
    fed_by: dict[str, None] = field(default_factory=dict)
    units: UnitsBySource | None = None
    features: UnitAccumulator | None = None
    norm: NormAccumulator | None = None
    attention: AttentionAccumulator = field(default_factory=AttentionAccumulator)
    joins: list[JoinAccumulator] = field(default_factory=list)
    rms_by_call: list[float] = field(default_factory=list)
    fingerprint: Fingerprint = field(default_factory=Fingerprint)
    gradient_fingerprint: Fingerprint = field(default_factory=Fingerprint)
    input_fingerprint: Fingerprint = field(default_factory=Fingerprint)

    def add_output(self, moments: Moments, tensor: Tensor) -> None:
        self.fingerprint.add(tensor)
        self.output = moments if self.output is None else self.output.merge(moments)
        if len(self.rms_by_call) < _MAX_CALLS:
            self.rms_by_call.append(moments.rms)

    def add_input(self, moments: Moments) -> None:
        self.input = moments if self.input is None else self.input.merge(moments)

    def add_gradient(self, moments: Moments, tensor: Tensor) -> None:
        self.gradient_fingerprint.add(tensor)
        self.gradient = moments if self.gradient is None else self.gradient.merge(moments)

    def join(self, index: int) -> JoinAccumulator:
        while len(self.joins) <= index:
            self.joins.append(JoinAccumulator())
        return self.joins[index]

    def finish(self, batches: int, parameters: tuple[record.ParameterRecord, ...]) -> record.ModuleRecord:
        each = max(1, batches)
        count = 0 if self.output is None else self.output.count + self.output.non_finite
        calls_per_batch = -(-self.calls // each)
        same = [item.name for item in fields(record.ModuleRecord) if hasattr(self, item.name)]
        finished = {name: _finish(getattr(self, name)) for name in same} | {
            "flops": None if self.flops is None else self.flops // each,
            "output_bytes": self.output_bytes // each,
            "saturated": None if self.saturated is None else self.saturated / max(1, count),
            "rms_by_call": tuple(self.rms_by_call[:calls_per_batch]) if calls_per_batch > 1 else (),
        }
        return record.ModuleRecord(**finished, parameters=parameters)


def _finish(value: Any) -> Any:
    """Return an accumulated value as the record holds it."""
    if isinstance(value, Moments):
        return tensor_stats(value)
    if isinstance(value, list | dict):
        return tuple(map(_finish, value))
    return value.finish() if hasattr(value, "finish") else value


def tensor_stats(moments: Moments) -> TensorStats:
    total = max(1, moments.count + moments.non_finite)
    return TensorStats(
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
    """Return the tensor as a matrix with one column for each index of the axis."""
    tensor = tensor.detach()
    if axis not in (-1, tensor.dim() - 1):
        tensor = tensor.movedim(axis, -1)
    if not tensor.dim():
        return tensor.reshape(1, 1)
    return tensor.reshape(math.prod(tensor.shape[:-1]), tensor.shape[-1])  # reshape(-1) fails for empty tensors


def add_units(
    accumulator: UnitAccumulator | None, tensor: Tensor, axis: int, bounds: tuple[float, float] | None
) -> UnitAccumulator:
    """Add one batch of units. A new accumulator is made for the first batch, or if the width changes."""
    rows = as_rows(tensor, axis)
    width = rows.shape[1]
    if accumulator is None or len(accumulator.columns.squares) != width:
        saturated = None if bounds is None else np.zeros(width, dtype=np.int64)
        accumulator = UnitAccumulator(ColumnStatistics(width), saturated)
    accumulator.columns.add(rows)
    if bounds is not None and accumulator.saturated is not None:
        accumulator.saturated += is_saturated(rows, bounds).sum(0).cpu().numpy()
    return accumulator


def is_saturated(values: Tensor, bounds: tuple[float, float]) -> Tensor:
    """Mark the outputs of a bounded function within 1% of its limits, where its slope is at most 4% of the largest."""
    low, high = bounds
    margin = 0.01 * (high - low)
    return torch.logical_or(values < low + margin, values > high - margin)
