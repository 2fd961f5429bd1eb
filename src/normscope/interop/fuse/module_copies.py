"""Copies of a module to experiment on: nothing that happens to one is seen by the model."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
"""Hooks, parameters, buffers and the mode: what is made anew for a copy."""


def own_attributes(module: nn.Module) -> dict[str, Any]:
    """The attributes that the module's own code has set: eps, sizes and the like."""
    return {name: value for name, value in vars(module).items() if name not in _OF_EVERY_MODULE}


def randomized_copy(module: nn.Module, dtype: torch.dtype = torch.float32) -> nn.Module:
    """A copy with the module's class and settings, without its hooks, and with values that hide nothing.

    A gain of one or a bias of zero would make different formulas look alike, and so would gains that are all positive
    or all of one size: a module may clamp its gain, or take its absolute value. So parameters are drawn at random, of
    both signs and from small to large: the same ones for every copy. A hook may hold on to the whole model, so
    hooks are not copied.
    """
    kind = type(module)
    double: nn.Module = kind.__new__(kind)
    vars(double).update(vars(nn.Module()))
    vars(double).update(copy.deepcopy(own_attributes(module)))
    generator = torch.Generator().manual_seed(0)
    for name, parameter in module._parameters.items():
        values = None if parameter is None else _of_both_signs(parameter, generator, dtype)
        double.register_parameter(name, None if values is None else nn.Parameter(values))
    for name, buffer in module._buffers.items():
        if buffer is not None and buffer.is_floating_point():
            double.register_buffer(name, _away_from_zero(buffer, generator, dtype))  # a variance has to be positive
        else:
            double.register_buffer(name, None if buffer is None else buffer.clone())
    return double


def _of_both_signs(like: Tensor, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    """Sizes from 1/16 to 16, as many in each octave, with alternating signs."""
    octave = torch.rand(like.shape, generator=generator, dtype=torch.float64, device="cpu") * 8 - 4
    sign = 1.0 - 2.0 * (torch.arange(like.numel(), device="cpu") % 2).reshape(like.shape)
    return (sign * octave.exp2()).to(dtype)


def _away_from_zero(like: Tensor, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    return (torch.rand(like.shape, generator=generator, dtype=torch.float64, device="cpu") * 1.5 + 0.25).to(dtype)


def random_input(shape: tuple[int, ...], scale: float, dtype: torch.dtype, seed: int) -> Tensor:
    """Normal numbers off centre, so that a norm that centres is told from one that does not."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")
    return ((values * 1.5 + 0.5) * scale).to(dtype)
