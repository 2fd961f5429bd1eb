"""Run copies of a module on chosen inputs, to find out what it computes. The module and the RNG are not touched."""

import copy
import warnings
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_MAX_DEPTH = 4
_STATELESS = ("builtins", "torch", "normscope")  # objects of these packages do not record calls
_MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))

TOLERANCE_ULPS = {torch.float32: 32, torch.bfloat16: 8, torch.float16: 8}
"""Tolerance in ulps of the dtype at the largest value.

Measured on norms of torch and transformers with 3 to 4096 features: up to 10 ulps in float32 and up to 4 in half
precision. With one or two features, cancellation can exceed it. The smallest plausible difference in the math, a
variance divided by d - 1 instead of d, is 400 ulps of float32 even for 10,000 features.
"""


def own_attributes(module: nn.Module) -> dict[str, Any]:
    """The attributes set by the module's own code, such as eps and sizes, without those of every module."""
    return {name: value for name, value in vars(module).items() if name not in _MODULE_ATTRIBUTES}


def copy_module(module: nn.Module) -> nn.Module:
    """Copy a module with its values, in training mode and without hooks, which may reference the whole model."""
    copied = copy.copy(module)
    for name, value in vars(module).items():
        is_hooks = "_hooks" in name and isinstance(value, dict)
        vars(copied)[name] = type(value)() if is_hooks else _copy_value(value, _MAX_DEPTH)
    copied._modules = {name: None if child is None else copy_module(child) for name, child in module._modules.items()}
    copied.training = True
    return copied


def _copy_value(value: Any, depth: int) -> Any:
    """Copy what a call may change: tensors, arrays and their containers. Share everything else."""
    if isinstance(value, Tensor):
        tensor = value.detach().clone()
        return nn.Parameter(tensor, value.requires_grad) if isinstance(value, nn.Parameter) else tensor
    if isinstance(value, np.ndarray):
        return value.copy()
    if depth == 0 or isinstance(value, type | ModuleType | nn.Module) or callable(value):
        return value
    if isinstance(value, dict):
        made = copy.copy(value)
        made.update({key: _copy_value(item, depth - 1) for key, item in value.items()})
        return made
    if type(value) in (list, tuple, set):
        return type(value)(_copy_value(item, depth - 1) for item in value)
    if type(value).__module__.partition(".")[0] not in _STATELESS and hasattr(value, "__dict__"):
        made = copy.copy(value)
        vars(made).update({name: _copy_value(item, depth - 1) for name, item in vars(value).items()})
        return made
    return value


def randomized_copy(module: nn.Module, dtype: torch.dtype = torch.float32, gain: float = 1.0) -> nn.Module:
    """Copy a module without submodules, with random parameters.

    A weight of one or a bias of zero would make different formulas look alike, and so would weights that are all
    positive or all of one scale: a module may clamp its weight or take its absolute value. So parameters are random, of
    both signs and all scales, and the same for every copy.

    Args:
        module: the module.
        dtype: the dtype of its parameters and buffers.
        gain: a factor for all parameters.
    """
    copied, generator = copy_module(module), torch.Generator().manual_seed(0)
    for name, parameter in module._parameters.items():
        if parameter is not None:  # values from 1/16 to 16, log-uniform, with alternating signs
            sign = 1.0 - 2.0 * (torch.arange(parameter.numel(), device="cpu") % 2).reshape(parameter.shape)
            values = gain * sign * (_uniform(parameter, generator) * 8 - 4).exp2()
            copied._parameters[name] = nn.Parameter(values.to(dtype))
    for name, buffer in module._buffers.items():
        if buffer is not None and buffer.is_floating_point():  # a variance must be positive
            copied._buffers[name] = (_uniform(buffer, generator) * 1.5 + 0.25).to(dtype)
    return copied


def _uniform(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.rand(like.shape, generator=generator, dtype=torch.float64, device="cpu")


def random_input(shape: tuple[int, ...], scale: float, dtype: torch.dtype, seed: int) -> Tensor:
    """Normal values with nonzero mean, to tell LayerNorm from RMSNorm."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")
    return ((values * 1.5 + 0.5) * scale).to(dtype)


def call_forward(module: nn.Module, x: Tensor) -> Tensor:
    """Call the forward of a module's class, without hooks, patches of the instance and warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        y = type(module).forward(module, x)
    if not isinstance(y, Tensor):
        raise TypeError(f"forward returned {type(y).__name__}, not a tensor")
    return y


def allclose(found: Tensor, wanted: Tensor, size: float = 0.0) -> bool:
    """Whether two tensors agree to `TOLERANCE_ULPS` at the largest value, or at `size`; NaN equals NaN."""
    ulps = TOLERANCE_ULPS.get(wanted.dtype)
    if ulps is None:
        return torch.equal(found, wanted)
    allowed = ulps * torch.finfo(wanted.dtype).eps * max(largest(wanted), size)
    return bool(torch.isclose(found.double(), wanted.double(), rtol=0.0, atol=allowed, equal_nan=True).all())


def largest(values: Tensor) -> float:
    """The largest finite absolute value."""
    finite = values[values.isfinite()].abs()
    return float(finite.max()) if finite.numel() else 0.0
