"""Measure norms: the axes they reduce over (found by experiment), eps relative to the input, running statistics."""

import math
import statistics
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from normscope.diagnostics.collect.collectives import no_collectives
from normscope.diagnostics.stats.tensors import NormStats
from normscope.tracing.module_kinds import weight_of
from normscope.tracing.norm_reduction import NormReduction, probe_reduction

_EPS_NAMES = ("eps", "variance_epsilon", "epsilon", "norm_eps", "layer_norm_eps")
_MAX_VALUES = 1 << 15
"""Values of the rows whose variance is measured, for their median. Torch computes so many on one thread."""
_MIN_ROWS = 128
_MAX_CALLS = 256
"""Calls whose variances are kept, to take the median."""


@dataclass
class NormAccumulator:
    """The statistics of one norm."""

    eps: float | None
    reduction: NormReduction | None
    variances: list[float] = field(default_factory=list)
    reduction_sizes: list[int] = field(default_factory=list)
    """The number of values that share one statistic, for each call."""
    padding: float = 0.0
    sums: Tensor | None = None
    """The sum over batches of the mean and of the mean square of each channel."""
    batches: int = 0
    batches_tracked: int | None = None
    drift: tuple[float, float] | None = None
    gain: tuple[float, float] | None = None
    momentum: float | None = None

    def finish(self) -> NormStats:
        reduction = self.reduction
        return NormStats(
            eps=self.eps,
            input_variance=statistics.median(self.variances) if self.variances else 0.0,
            reduced_axes=None if reduction is None else reduction.reduced_axes,
            removes_bias=None if reduction is None else reduction.removes_bias,
            reduction_size=statistics.median_low(self.reduction_sizes) if self.reduction_sizes else None,
            drift=self.drift,
            batches_tracked=self.batches_tracked,
            padding_fraction=self.padding,
            weight_mean=None if self.gain is None else self.gain[0],
            weight_std=None if self.gain is None else self.gain[1],
            finite_for_zeros=None if reduction is None else reduction.finite_for_zeros,
            momentum=self.momentum,
        )


def eps_of(module: nn.Module, x: Tensor) -> float | None:
    for name in _EPS_NAMES:
        value = getattr(module, name, 0)
        if value is None:  # nn.RMSNorm: the machine epsilon of the input, at least that of float32
            return torch.finfo(torch.promote_types(x.dtype, torch.float32)).eps
        if isinstance(value, float):
            return value
    return None


def has_running_stats(module: nn.Module) -> bool:
    return all(isinstance(getattr(module, name, None), Tensor) for name in ("running_mean", "running_var"))


def add_norm(accumulator: NormAccumulator | None, module: nn.Module, x: Tensor, channels: int) -> NormAccumulator:
    """Add the input of a norm."""
    x = x.detach()
    if accumulator is None:
        with no_collectives():  # a norm of the user's may communicate
            reduction = probe_reduction(module, x, channels)
        accumulator = NormAccumulator(eps_of(module, x), reduction)
    axes = () if accumulator.reduction is None else accumulator.reduction.reduced_axes
    if len(accumulator.variances) < _MAX_CALLS:
        is_centered = accumulator.reduction is not None and accumulator.reduction.is_centered
        variance = _median_variance(x, axes, is_centered) if axes else float(x.float().square().mean())
        accumulator.variances.append(variance)
        count = _reduction_size(accumulator.reduction, module, x)
        accumulator.reduction_sizes += [] if count is None else [count]
    if 0 in axes and x.dim() == 3:
        accumulator.padding = max(accumulator.padding, _padding_fraction(x, 1 if 1 not in axes else 2))
    momentum = getattr(module, "momentum", None) if has_running_stats(module) else None
    accumulator.momentum = float(momentum) if isinstance(momentum, int | float) else None
    if has_running_stats(module) and x.dim() >= 2:
        _add_batch_stats(accumulator, module, x)
    weight = weight_of(module)
    if weight is not None and weight.numel():
        gain = weight.detach().float()
        accumulator.gain = float(gain.mean()), float(gain.std(correction=0))
    return accumulator


def _reduction_size(reduction: NormReduction | None, module: nn.Module, x: Tensor) -> int | None:
    """Return the number of values that share one statistic; None if unknown."""
    if reduction is not None and reduction.reduced_axes:
        return math.prod(x.shape[axis] for axis in reduction.reduced_axes)
    if reduction is not None and reduction.is_constant:
        return 1
    if x.dim() and has_running_stats(module):
        return x.numel() // max(1, x.shape[1 if x.dim() > 1 else 0])
    return None


def _median_variance(x: Tensor, axes: tuple[int, ...], is_centered: bool) -> float:
    wide = x.float()
    if axes == (x.dim() - 1,):
        rows = wide.reshape(-1, x.shape[-1])
        most = max(_MIN_ROWS, _MAX_VALUES // max(1, x.shape[-1]))
        wide = rows[:: -(-len(rows) // most)] if len(rows) else rows
        axes = (1,)
    found = wide.var(dim=axes, correction=0) if is_centered else wide.square().mean(dim=axes)
    return float(found.median())


def _padding_fraction(x: Tensor, channels: int) -> float:
    """Return the fraction of positions at the ends of sequences that repeat their neighbor, if lengths differ."""
    sequences = x.transpose(1, 2) if channels == 1 else x  # b s d
    same = (sequences[:, 1:] == sequences[:, :-1]).all(-1)
    longest = 0.0
    for run in (same.flip(1), same):  # at the end, at the beginning
        lengths = run.long().cumprod(1).sum(1)
        if bool((lengths != lengths[0]).any()):
            longest = max(longest, float((lengths + (lengths > 0)).sum()) / (x.shape[0] * sequences.shape[1]))
    return longest


def _add_batch_stats(accumulator: NormAccumulator, module: nn.Module, x: Tensor) -> None:
    channels = _channels(accumulator.reduction, x)
    axes = [axis for axis in range(x.dim()) if axis != channels]
    wide = x.double()
    sums = torch.stack([wide.mean(axes), wide.square().mean(axes)])
    if accumulator.sums is None or accumulator.sums.shape == sums.shape:
        accumulator.sums = sums if accumulator.sums is None else accumulator.sums + sums
        accumulator.batches += 1


def _channels(reduction: NormReduction | None, x: Tensor) -> int:
    """Return the axis that is not reduced over; the second if several are not."""
    kept = [axis for axis in range(1, x.dim()) if reduction is not None and axis not in reduction.reduced_axes]
    return kept[0] if len(kept) == 1 else 1


def compare_running_stats(accumulator: NormAccumulator, module: nn.Module) -> None:
    """Compare the running statistics of a norm with those of the batches it received."""
    if not has_running_stats(module) or accumulator.sums is None:
        return
    running_mean, running_var = (module.get_buffer(name).double() for name in ("running_mean", "running_var"))
    mean, square = accumulator.sums / accumulator.batches
    variance = square - mean.square()
    counter = getattr(module, "num_batches_tracked", None)
    accumulator.batches_tracked = int(counter) if isinstance(counter, Tensor) else None
    if mean.shape != running_mean.shape:
        return
    eps = accumulator.eps or 1e-5
    off = ((mean - running_mean).abs() / (running_var + eps).sqrt()).median()
    ratio = (variance + eps) / (running_var + eps)
    accumulator.drift = float(off), float(torch.maximum(ratio, 1 / ratio).median())
