"""What is particular to norms: which axes share statistics (found by trying), eps against the signal, their memory."""

import math
import re
import statistics
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from normscope.diagnostics.collect.kinds import weight_of
from normscope.diagnostics.collect.norm_trial import NormTrial, try_norm
from normscope.diagnostics.record import NormStats

_EPS_NAMES = ("eps", "variance_epsilon", "epsilon", "norm_eps", "layer_norm_eps")
_LIKE_NORM = re.compile(r"norm(?!al(?!i[sz])|ous)", re.IGNORECASE)  # and not the normal distribution
_ROWS = 4096
_CALLS = 256
"""Of so many calls the sizes are kept: the middle one is asked for, and a long run would keep too many."""


@dataclass
class NormAccumulator:
    """The figures of one norm so far."""

    eps: float | None
    trial: NormTrial | None
    variances: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    """How many numbers shared a statistic, of each call."""
    padding: float = 0.0
    means: Tensor | None = None
    squares: Tensor | None = None
    batches: int = 0
    tracked: int | None = None
    drift: tuple[float, float] | None = None
    gain: tuple[float, float] | None = None

    def finish(self) -> NormStats:
        trial = self.trial
        return NormStats(
            eps=self.eps,
            input_variance=statistics.median(self.variances) if self.variances else 0.0,
            reduced_axes=None if trial is None else trial.shares,
            removes_bias=None if trial is None else trial.removes_bias,
            reduction_size=statistics.median_low(self.counts) if self.counts else None,
            drift=self.drift,
            batches_tracked=self.tracked,
            padding_fraction=self.padding,
            weight_mean=None if self.gain is None else self.gain[0],
            weight_std=None if self.gain is None else self.gain[1],
            finite_for_zeros=None if trial is None else trial.finite_on_zeros,
        )


def is_norm(module: nn.Module, name: str = "") -> bool:
    """Whether a module normalizes: torch's norms, and others by their class that have no module and no matrix inside.

    What makes a weight from another, as spectral norm does, is given no signal: its full name tells.
    """
    if ".parametrizations." in f".{name}.":
        return False
    known = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.modules.batchnorm._NormBase)
    if isinstance(module, known):
        return True
    named = _LIKE_NORM.search(type(module).__name__) is not None
    return named and not any(module.children()) and all(p.dim() <= 1 for p in module.parameters())


def eps_of(module: nn.Module, x: Tensor) -> float | None:
    for name in _EPS_NAMES:
        value = getattr(module, name, 0)
        if value is None:  # torch's RMSNorm: the spacing of the input's type, of float32 at least
            return torch.finfo(torch.promote_types(x.dtype, torch.float32)).eps
        if isinstance(value, float):
            return value
    return None


def has_running_stats(module: nn.Module) -> bool:
    return isinstance(getattr(module, "running_mean", None), Tensor) and isinstance(
        getattr(module, "running_var", None), Tensor
    )


def add_norm(accumulator: NormAccumulator | None, module: nn.Module, x: Tensor, channels: int) -> NormAccumulator:
    """What a norm is about to be given."""
    x = x.detach()
    if accumulator is None:
        accumulator = NormAccumulator(eps_of(module, x), try_norm(module, x, channels))
    shares = () if accumulator.trial is None else accumulator.trial.shares
    if len(accumulator.variances) < _CALLS:
        is_centered = accumulator.trial is not None and accumulator.trial.is_centered
        accumulator.variances.append(
            _middle_variance(x, shares, is_centered) if shares else float(x.float().square().mean())
        )
        count = _sharing(accumulator.trial, module, x)
        accumulator.counts += [] if count is None else [count]
    if 0 in shares and x.dim() == 3:
        accumulator.padding = max(accumulator.padding, _padding(x, 1 if 1 not in shares else 2))
    if has_running_stats(module) and x.dim() >= 2:
        _add_memory(accumulator, module, x)
    weight = weight_of(module)
    if weight is not None and weight.numel():
        gain = weight.detach().float()
        accumulator.gain = float(gain.mean()), float(gain.std(correction=0))
    return accumulator


def _sharing(trial: NormTrial | None, module: nn.Module, x: Tensor) -> int | None:
    """How many of its numbers share one statistic; None if that is not known."""
    if trial is not None and trial.shares:
        return math.prod(x.shape[axis] for axis in trial.shares)
    if trial is not None and trial.is_constant:
        return 1
    if x.dim() and has_running_stats(module):
        return x.numel() // max(1, x.shape[1 if x.dim() > 1 else 0])
    return None


def _middle_variance(x: Tensor, shares: tuple[int, ...], is_centered: bool) -> float:
    wide = x.float()
    if shares == (x.dim() - 1,):
        wide = wide.reshape(-1, x.shape[-1])[:_ROWS]
        shares = (1,)
    found = wide.var(dim=shares, correction=0) if is_centered else wide.square().mean(dim=shares)
    return float(found.median())


def _padding(x: Tensor, channels: int) -> float:
    """The share of places at the ends of texts whose features are the same as their neighbour's, if lengths differ."""
    texts = x.transpose(1, 2) if channels == 1 else x  # b s d
    same = (texts[:, 1:] == texts[:, :-1]).all(-1)
    longest = 0.0
    for run in (same.flip(1), same):  # at the end, at the beginning
        lengths = run.long().cumprod(1).sum(1)
        if bool((lengths != lengths[0]).any()):
            longest = max(longest, float((lengths + (lengths > 0)).sum()) / (x.shape[0] * texts.shape[1]))
    return longest


def _add_memory(accumulator: NormAccumulator, module: nn.Module, x: Tensor) -> None:
    channels = _channels(accumulator.trial, x)
    axes = [axis for axis in range(x.dim()) if axis != channels]
    mean, square = x.double().mean(axes), x.double().square().mean(axes)
    if accumulator.means is not None and accumulator.means.shape != mean.shape:
        return
    accumulator.means = mean if accumulator.means is None else accumulator.means + mean
    accumulator.squares = square if accumulator.squares is None else accumulator.squares + square
    accumulator.batches += 1


def _channels(trial: NormTrial | None, x: Tensor) -> int:
    """The axis that keeps a statistic of its own: the one that is not shared; the second if several are not."""
    apart = [axis for axis in range(1, x.dim()) if trial is not None and axis not in trial.shares]
    return apart[0] if len(apart) == 1 else 1


def compare_running_stats(accumulator: NormAccumulator, module: nn.Module) -> None:
    """Hold the running statistics against those of the batches that were seen."""
    if not has_running_stats(module) or accumulator.means is None or accumulator.squares is None:
        return
    kept_mean, kept_variance = (module.get_buffer(name).double() for name in ("running_mean", "running_var"))
    mean = accumulator.means / accumulator.batches
    variance = accumulator.squares / accumulator.batches - mean.square()
    counter = getattr(module, "num_batches_tracked", None)
    accumulator.tracked = int(counter) if isinstance(counter, Tensor) else None
    if mean.shape != kept_mean.shape:
        return
    eps = accumulator.eps or 1e-5
    off = ((mean - kept_mean).abs() / (kept_variance + eps).sqrt()).median()
    ratio = (variance + eps) / (kept_variance + eps)
    accumulator.drift = float(off), float(torch.maximum(ratio, 1 / ratio).median())
