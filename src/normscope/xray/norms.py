"""What is particular to norms: which axes share statistics (found by trying), eps against the signal, their memory."""

import copy
import statistics
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from normscope.xray.record import NormFigures

_EPS_NAMES = ("eps", "variance_epsilon", "epsilon", "norm_eps", "layer_norm_eps")
_ROWS = 4096
_FEW = 4


@dataclass(frozen=True)
class Trial:
    """What a norm does to a made-up input, with one number changed, and with constants added.

    Args:
        shares: the axes along which the change was felt.
        centred: whether a constant added everywhere is taken away.
        removes_bias: whether a constant added to each channel is.
        bears_silence: whether zeros come out finite.
    """

    shares: tuple[int, ...]
    centred: bool
    removes_bias: bool
    bears_silence: bool


@dataclass
class NormTally:
    """The figures of one norm so far."""

    eps: float | None
    trial: Trial | None
    variances: list[float] = field(default_factory=list)
    values: int | None = None
    padding: float = 0.0
    means: Tensor | None = None
    squares: Tensor | None = None
    batches: int = 0
    tracked: int | None = None
    drift: tuple[float, float] | None = None
    gain: tuple[float, float] | None = None

    def finish(self) -> NormFigures:
        trial = self.trial
        return NormFigures(
            eps=self.eps,
            input_variance=statistics.median(self.variances) if self.variances else 0.0,
            shares=None if trial is None else trial.shares,
            removes_bias=None if trial is None else trial.removes_bias,
            values=self.values,
            drift=self.drift,
            tracked=self.tracked,
            padding=self.padding,
            gain_mean=None if self.gain is None else self.gain[0],
            gain_spread=None if self.gain is None else self.gain[1],
            bears_silence=None if trial is None else trial.bears_silence,
        )


def is_norm(module: nn.Module) -> bool:
    """Whether a module normalizes: torch's norms, and others by their name that have no module and no matrix inside."""
    known = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.modules.batchnorm._NormBase)
    if isinstance(module, known):
        return True
    named = "norm" in type(module).__name__.lower()
    return named and not any(module.children()) and all(p.dim() <= 1 for p in module.parameters())


def eps_of(module: nn.Module, x: Tensor) -> float | None:
    for name in _EPS_NAMES:
        value = getattr(module, name, 0)
        if value is None:  # torch's RMSNorm: the spacing of the input's type, of float32 at least
            return torch.finfo(torch.promote_types(x.dtype, torch.float32)).eps
        if isinstance(value, float):
            return value
    return None


def keeps_running(module: nn.Module) -> bool:
    return isinstance(getattr(module, "running_mean", None), Tensor) and isinstance(
        getattr(module, "running_var", None), Tensor
    )


def try_out(module: nn.Module, x: Tensor, channels: int) -> Trial | None:
    """Try a copy of the norm on a made-up input like x, but small. The module itself is not called."""
    if isinstance(module, nn.SyncBatchNorm) or getattr(module, "sync", False):
        return None  # it would wait for other processes, which may not be looking
    axis = channels % x.dim() if x.dim() else 0
    small = tuple(size if i == axis else min(size, _FEW) for i, size in enumerate(x.shape))
    for shape in (small, (min(_FEW, x.shape[0]), *x.shape[1:])) if x.dim() else ():
        try:
            with torch.no_grad():
                return _trial(module, _made_up(shape, x), channels)
        except Exception:
            continue
    return None


def _twin(module: nn.Module) -> nn.Module:
    """The same parameters and a memory of its own, in training mode, with nobody watching."""
    twin = copy.copy(module)
    for name, value in vars(module).items():
        if isinstance(value, dict):
            vars(twin)[name] = type(value)() if "_hooks" in name else copy.copy(value)
    for name, buffer in module._buffers.items():
        twin._buffers[name] = None if buffer is None else buffer.clone()
    twin.training = True
    return twin


def _made_up(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Numbers of all sizes from -1 to 1, without touching a generator of random ones."""
    count = 1
    for size in shape:
        count *= size
    places = torch.arange(count, dtype=torch.float64, device="cpu")
    return torch.sin(places * 12.9898 + 0.5 * torch.sin(places * 78.233)).reshape(shape).to(like)


def _trial(module: nn.Module, x: Tensor, channels: int) -> Trial:
    def fresh(y: Tensor) -> Tensor:
        z: Tensor = _twin(module)(y)  # a new one each time: a norm with a memory is another one after a call
        return z

    plain = fresh(x)
    size = plain.float().abs().amax()
    first = (0,) * x.dim()
    moved = x.clone()
    moved[first] += 100.0
    changed = (fresh(moved).float() - plain.float()).abs() > 1e-4 * size
    shares = []
    for axis in range(x.dim()):
        along = changed[tuple(slice(None) if i == axis else 0 for i in range(x.dim()))]
        if bool(along[1:].any()):
            shares.append(axis)
    centred = _same(fresh(x + 0.5), plain)
    rest = [axis for axis in range(x.dim()) if axis not in shares]
    # A norm over the batch keeps its channels apart along the one axis that it does not share, wherever that is.
    axis = rest[0] if 0 in shares and len(rest) == 1 else channels % x.dim()
    steps = torch.linspace(-0.5, 0.5, x.shape[axis]).to(x).reshape([-1 if i == axis else 1 for i in range(x.dim())])
    bears_silence = bool(torch.isfinite(fresh(torch.zeros_like(x))).all())
    return Trial(tuple(shares), centred, _same(fresh(x + steps), plain), bears_silence)


def _same(y: Tensor, z: Tensor) -> bool:
    # Constants of 0.5 move what is not centred by much; half types and eps move it by little.
    return bool((y.float() - z.float()).abs().amax() < 0.05 * z.float().abs().amax())


def add_norm(tally: NormTally | None, module: nn.Module, x: Tensor, channels: int) -> NormTally:
    """What a norm is about to be given."""
    x = x.detach()
    if tally is None:
        tally = NormTally(eps_of(module, x), try_out(module, x, channels))
    shares = () if tally.trial is None else tally.trial.shares
    if shares:
        tally.variances.append(_middle_variance(x, shares, tally.trial is not None and tally.trial.centred))
        count = 1
        for axis in shares:
            count *= x.shape[axis]
        tally.values = count if tally.values is None else min(tally.values, count)
    else:
        tally.variances.append(float(x.float().square().mean()))
        if x.dim() and keeps_running(module):
            count = x.numel() // max(1, x.shape[1 if x.dim() > 1 else 0])
            tally.values = count if tally.values is None else min(tally.values, count)
    if 0 in shares and x.dim() == 3:
        tally.padding = max(tally.padding, _padding(x, 1 if 1 not in shares else 2))
    if keeps_running(module) and x.dim() >= 2:
        _add_memory(tally, module, x)
    weight = getattr(module, "weight", None)
    if isinstance(weight, Tensor) and weight.numel():
        gain = weight.detach().float()
        tally.gain = float(gain.mean()), float(gain.std(correction=0))
    return tally


def _middle_variance(x: Tensor, shares: tuple[int, ...], centred: bool) -> float:
    wide = x.float()
    if shares == (x.dim() - 1,):
        wide = wide.reshape(-1, x.shape[-1])[:_ROWS]
        shares = (1,)
    found = wide.var(dim=shares, correction=0) if centred else wide.square().mean(dim=shares)
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


def _add_memory(tally: NormTally, module: nn.Module, x: Tensor) -> None:
    axes = [axis for axis in range(x.dim()) if axis != 1]
    mean, square = x.double().mean(axes), x.double().square().mean(axes)
    tally.means = mean if tally.means is None else tally.means + mean
    tally.squares = square if tally.squares is None else tally.squares + square
    tally.batches += 1


def compare_memory(tally: NormTally, module: nn.Module) -> None:
    """Hold the running statistics against those of the batches that were seen."""
    if not keeps_running(module) or tally.means is None or tally.squares is None:
        return
    kept_mean, kept_variance = (module.get_buffer(name).double() for name in ("running_mean", "running_var"))
    mean = tally.means / tally.batches
    variance = tally.squares / tally.batches - mean.square()
    counter = getattr(module, "num_batches_tracked", None)
    tally.tracked = int(counter) if isinstance(counter, Tensor) else None
    if mean.shape != kept_mean.shape:
        return
    eps = tally.eps or 1e-5
    off = ((mean - kept_mean).abs() / (kept_variance + eps).sqrt()).median()
    ratio = (variance + eps) / (kept_variance + eps)
    tally.drift = float(off), float(torch.maximum(ratio, 1 / ratio).median())
