"""Trying out a norm: what a copy of it does to a made-up input, whatever its class says of itself."""

import copy
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_FEW = 4
_DEEPEST = 4
_TRUSTED = ("builtins", "torch", "normscope")  # their objects keep no figures of calls
_MOVE, _HEARD = 100.0, 0.05
"""By how much a number is changed; and what of it has to come out: less is the rounding of a number minus itself."""


@dataclass(frozen=True)
class NormTrial:
    """What a norm does to a made-up input, with one number changed, and with constants added.

    Args:
        shares: the axes along which the change was felt.
        centred: whether a constant added everywhere is taken away.
        removes_bias: whether a constant added to each channel is.
        bears_silence: whether zeros come out finite.
        is_deaf: whether the change was felt nowhere, not even at its own place: each number is its own mean.
    """

    shares: tuple[int, ...]
    is_centered: bool
    removes_bias: bool
    finite_on_zeros: bool
    is_constant: bool = False


def try_norm(module: nn.Module, x: Tensor, channels: int) -> NormTrial | None:
    """Try a copy of the norm on a made-up input like x, but small. The module and random numbers are not touched."""
    if isinstance(module, nn.SyncBatchNorm) or getattr(module, "sync", False):
        return None  # it would wait for other processes, which may not be looking
    axis = channels % x.dim() if x.dim() else 0
    small = tuple(size if i == axis else min(size, _FEW) for i, size in enumerate(x.shape))
    for shape in (small, (min(_FEW, x.shape[0]), *x.shape[1:])) if x.dim() else ():
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
                return _trial(module, _synthetic_input(shape, x), channels)
        except Exception:
            continue
    return None


def _copy_module(module: nn.Module) -> nn.Module:
    """The same numbers in memory of its own, in training mode, with nobody watching."""
    twin = copy.copy(module)
    for name, value in vars(module).items():
        hooks = "_hooks" in name and isinstance(value, dict)
        vars(twin)[name] = type(value)() if hooks else _copy_value(value, _DEEPEST)
    twin._modules = {name: None if child is None else _copy_module(child) for name, child in module._modules.items()}
    twin.training = True
    return twin


def _copy_value(value: Any, deepest: int) -> Any:
    """A copy of what a call may change: numbers in memory, and what holds them. All else is shared."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Tensor):
        numbers = value.detach().clone()
        return nn.Parameter(numbers, value.requires_grad) if isinstance(value, nn.Parameter) else numbers
    if isinstance(value, np.ndarray):
        return value.copy()
    if deepest == 0 or isinstance(value, type | ModuleType | nn.Module) or callable(value):
        return value
    if isinstance(value, dict):
        made = copy.copy(value)
        for key in made:
            made[key] = _copy_value(made[key], deepest - 1)
        return made
    if type(value) in (list, tuple, set):
        return type(value)(_copy_value(item, deepest - 1) for item in value)
    if type(value).__module__.partition(".")[0] in _TRUSTED:
        return value
    if hasattr(value, "__dict__"):
        made = copy.copy(value)
        for name, item in vars(value).items():
            vars(made)[name] = _copy_value(item, deepest - 1)
        return made
    return value


def _synthetic_input(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Numbers of all sizes from -1 to 1, without touching a generator of random ones."""
    count = 1
    for size in shape:
        count *= size
    places = torch.arange(count, dtype=torch.float64, device="cpu")
    return torch.sin(places * 12.9898 + 0.5 * torch.sin(places * 78.233)).reshape(shape).to(like)


def _trial(module: nn.Module, x: Tensor, channels: int) -> NormTrial:
    first_twin = _copy_module(module)
    for parameter in first_twin.parameters():
        parameter[parameter == 0] = 1.0  # a gain that starts at zero would hide all that there is to see

    def fresh(y: Tensor) -> Tensor:
        # A new twin each time: a norm with a memory is another one after a call. Its forward is called as the class
        # has it: what hangs on all modules of torch, or was put in the place of this one's forward, is not for it.
        z: Tensor = type(module).forward(_copy_module(first_twin), y)
        return z

    plain = fresh(x)
    size = plain.float().abs().amax()
    first = (0,) * x.dim()
    moved = x.clone()
    moved[first] += _MOVE
    change = (fresh(moved).float() - plain.float()).abs()
    changed = change > 1e-4 * size
    shares = []
    for axis in range(x.dim()):
        along = changed[tuple(slice(None) if i == axis else 0 for i in range(x.dim()))]
        if bool(along[1:].any()):
            shares.append(axis)
    is_centered = _same(fresh(x + 0.5), plain)
    rest = [axis for axis in range(x.dim()) if axis not in shares]
    # A norm over the batch keeps its channels apart along the one axis that it does not share, wherever that is.
    axis = rest[0] if 0 in shares and len(rest) == 1 else channels % x.dim()
    steps = torch.linspace(-0.5, 0.5, x.shape[axis]).to(x).reshape([-1 if i == axis else 1 for i in range(x.dim())])
    finite_on_zeros = bool(torch.isfinite(fresh(torch.zeros_like(x))).all())
    is_constant = not shares and bool(change.amax() < _HEARD)
    return NormTrial(tuple(shares), is_centered, _same(fresh(x + steps), plain), finite_on_zeros, is_constant)


def _same(y: Tensor, z: Tensor) -> bool:
    # Constants of 0.5 move what is not centred by much; half types and eps move it by little.
    return bool((y.float() - z.float()).abs().amax() < 0.05 * z.float().abs().amax())
