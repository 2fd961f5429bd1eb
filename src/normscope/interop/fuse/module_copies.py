"""Copies of a module to experiment on, independent of the model."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

_MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))
"""Attributes of every module (hooks, parameters, buffers, mode): not copied."""


def own_attributes(module: nn.Module) -> dict[str, Any]:
    """The attributes set by the module's own code, such as eps and sizes."""
    return {name: value for name, value in vars(module).items() if name not in _MODULE_ATTRIBUTES}


def randomized_copy(module: nn.Module, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Copy a module with random parameters and without hooks.

    A weight of one or a bias of zero would make different formulas look alike, and so would weights that are all
    positive or all of one scale: a module may clamp its weight or take its absolute value. So parameters are random, of
    both signs and all scales, and the same for every copy. Hooks may reference the whole model and are not copied.
    """
    kind = type(module)
    copied: nn.Module = kind.__new__(kind)
    vars(copied).update(vars(nn.Module()))
    vars(copied).update(copy.deepcopy(own_attributes(module)))
    generator = torch.Generator().manual_seed(0)
    for name, parameter in module._parameters.items():
        values = None if parameter is None else _of_both_signs(parameter, generator, dtype)
        copied.register_parameter(name, None if values is None else nn.Parameter(values))
    for name, buffer in module._buffers.items():
        if buffer is not None and buffer.is_floating_point():
            copied.register_buffer(name, _away_from_zero(buffer, generator, dtype))  # a variance must be positive
        else:
            copied.register_buffer(name, None if buffer is None else buffer.clone())
    return copied


def _of_both_signs(like: Tensor, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    """Values from 1/16 to 16, log-uniform, with alternating signs."""
    octave = torch.rand(like.shape, generator=generator, dtype=torch.float64, device="cpu") * 8 - 4
    sign = 1.0 - 2.0 * (torch.arange(like.numel(), device="cpu") % 2).reshape(like.shape)
    return (sign * octave.exp2()).to(dtype)


def _away_from_zero(like: Tensor, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    return (torch.rand(like.shape, generator=generator, dtype=torch.float64, device="cpu") * 1.5 + 0.25).to(dtype)


def random_input(shape: tuple[int, ...], scale: float, dtype: torch.dtype, seed: int) -> Tensor:
    """Normal values with nonzero mean, to tell LayerNorm from RMSNorm."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")
    return ((values * 1.5 + 0.5) * scale).to(dtype)
