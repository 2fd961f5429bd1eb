"""Argument checks of the norms."""

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor

from normscope.blocks.checks import check_mask_tensor
from normscope.checks import is_integer, is_number
from normscope.errors import ConfigError, ScopeError, ShapeError, TransformError
from normscope.ops.kernel_mode import is_exporting_or_tracing, is_function_transform_active
from normscope.ops.norm.statistic import RMS, Statistic
from normscope.scope import Plan, Scope
from normscope.scope.grammar import flatten_axes

NormState = Literal["running", "power"]
"""The state kept between batches: the running statistics of BatchNorm, or those of PowerNorm."""


def check_settings(
    statistic: Statistic, state: str | None, momentum: float | None, warmup: int, eps: float | None
) -> None:
    """Check the settings that do not depend on sizes."""
    check_eps(eps)
    if state is not None and state not in get_args(NormState):
        raise ConfigError(f"state={state!r} is not known; choose None or one of {', '.join(get_args(NormState))}")
    if state is not None and not statistic.has_kernels:  # running statistics know the two built-in formulas
        raise ConfigError(f"statistic={statistic.name!r} cannot be tracked; leave state={state!r} out")
    if momentum is not None and not (is_number(momentum) and 0 <= momentum <= 1):
        raise ConfigError(f"momentum={momentum!r} must lie between 0 and 1, or be None for an average over all batches")
    if state == "power" and (statistic != RMS or momentum is None):
        raise ConfigError(
            f"state='power' needs statistic='rms' and a momentum, but got {statistic.name!r} and {momentum}"
        )
    if not is_integer(warmup, least=0):
        raise ConfigError(f"warmup={warmup!r} must be a non-negative integer, the number of warmup batches")
    if warmup and state != "power":
        raise ConfigError(f"warmup={warmup!r} goes with state='power', but state is {state!r}")


def check_eps(eps: float | None) -> None:
    if eps is not None and not (is_number(eps) and 0 <= eps < math.inf):
        raise ConfigError(f"eps={eps!r} must be a non-negative number")


# Axis sizes are keyword arguments too (`c=64`), so axes cannot have these names.
_ARGUMENTS = {"affine", "bias", "device", "dtype", "elementwise_affine", "eps", "input", "mask", "momentum", "state"}
_ARGUMENTS |= {"statistic", "sync", "track_running_stats", "warmup", "weight"}


def check_names(scope: Scope) -> None:
    """Reject an axis whose name is also an argument of the norm."""
    for axis in scope.axes:
        if axis.name in _ARGUMENTS:
            problem = f"{axis.name!r} is an argument of a norm, so an axis cannot have that name"
            raise ScopeError(problem, text=scope.text, span=axis.span, fix="give the axis another name")


def check_mask_axes(mask: Tensor | None, x: Tensor, scope: Scope, plan: Plan, features: Collection[str]) -> None:
    """Reject a mask with fewer dimensions than x that would vary along a feature axis.

    A mask (n, l) for a tensor (n, c, l) would be broadcast along c, and silently fit if c = l.
    """
    if isinstance(mask, Tensor):
        check_mask_tensor(mask, x)
    rank = len(plan.shape)
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.dim() >= rank:
        return  # anything that is not a mask is rejected in expand_mask
    for place, dim in enumerate(scope.dimensions(rank)[: mask.dim()]):
        if any(axis.name in features for axis in flatten_axes([dim])) and mask.shape[place] != 1:
            raise ShapeError(
                f"a mask of shape {tuple(mask.shape)} would vary along dimension {place} of a tensor of shape "
                f"{plan.shape}, which holds features ({scope.text!r}); give it {rank} dimensions, with 1 for those, "
                f"for instance mask[:, None]"
            )


def check_kept_axes(scope: Scope, sizes: Mapping[str, int], state: NormState | None, sync: bool) -> None:
    """Check the axes outside the brackets: buffers, and statistics that ranks add up, need all of their sizes."""
    unknown = " and ".join([repr(a.name) for a in scope.axes if not a.bracketed and a.name not in sizes])
    if sync and not scope.axes[0].bracketed:
        raise ConfigError(
            f"sync=True shares statistics between ranks, which hold different samples, but the scope {scope.text!r} "
            f"does not bracket its first axis: every sample is normalized separately. Remove sync=True"
        )
    if sync and unknown:
        raise ConfigError(
            f"sync=True adds up the statistics of all ranks, which must have one shape, but in {scope.text!r} "
            f"the size of {unknown} may differ between them; give it, or bracket the axis"
        )
    if state == "power" and unknown:
        raise ConfigError(
            f"state='power' needs a buffer entry per statistic, but the size of {unknown} "
            f"in the scope {scope.text!r} is unknown; bracket the axis, or pass its size"
        )


def resolve_scope(
    given: object, sizes: dict[str, Any], from_torch: Callable[[], tuple[str, dict[str, int]]]
) -> tuple[Scope, dict[str, Any]]:
    """Return the scope and the sizes that a named layer was given, or those that follow from torch's arguments.

    The sizes are checked before a layer merges them with its own arguments. Without a scope there must be none: they
    would silently be ignored, as would misspelled arguments.
    """
    if isinstance(given, str | Scope):
        scope = Scope.parse(given)
        check_names(scope)
        scope.check_sizes(**sizes)
        return scope, sizes
    if sizes:
        name = next(iter(sizes))
        raise ConfigError(f"{name}=... is not an argument here; sizes of axes go with a scope, but got {given!r}")
    text, sizes = from_torch()
    return Scope.parse(text), sizes


def to_positive_int(name: str, value: object, otherwise: str = "") -> int:
    """Convert a positive integer (numpy integers included) to int."""
    if not is_integer(value):
        raise ConfigError(f"{name}={value!r} must be a positive integer{', ' * bool(otherwise)}{otherwise}")
    return int(cast(int, value))


def check_custom_backward() -> None:
    """Reject training a PowerNorm where torch would ignore its custom backward pass."""
    if is_function_transform_active() or is_exporting_or_tracing():
        raise TransformError(
            "PowerNorm in training has a custom backward pass that updates its running statistics; torch.func, "
            "torch.export and torch.jit.trace differentiate the forward pass instead and would compute something else"
            "\nfix: call eval() first, or train with plain autograd or torch.compile"
        )


def channel_axes(scope: Scope, sizes: Mapping[str, int]) -> str:
    """Return the affine axes of a channel norm: the dimensions of known size that are not fully bracketed.

    >>> channel_axes(Scope.parse("n (g [c]) [...]"), {"g": 8, "c": 4}), channel_axes(Scope.parse("[b s] d"), {"d": 4})
    ('(g c)', 'd')
    """
    names = []
    for dim in scope.dims:
        axes = list(flatten_axes([dim]))
        if all(axis.name in sizes for axis in axes) and not all(axis.bracketed for axis in axes):
            names.append(scope.text[slice(*dim.span)].replace("[", "").replace("]", ""))
    if not names:
        raise ConfigError(
            f"the weight needs an axis that is not in brackets and whose size is known, but with {dict(sizes)} the "
            f"scope {scope.text!r} has none; give its size, as in BatchNorm('[n] c [...]', c=64), or affine=False"
        )
    return " ".join(names)
