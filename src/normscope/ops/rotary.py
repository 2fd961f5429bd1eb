"""Rotary embedding of queries and keys, alone or after an RMS norm of each head.

Axes: x is (b, s, heads, e); cos and sin are (s, 1, e/2), or (b, s, 1, e/2) if rows have different positions.

`fused/rotary.py` has the kernels: one pass over memory. The backward pass of a rotation is the inverse rotation, which
needs no saved input; with the norm the input is saved.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from normscope.ops.buffers import (
    addresses,
    empty_float32,
    empty_float64,
    match_parameter,
    parameter_or,
    to_contiguous_float32,
)
from normscope.ops.norm import reference
from normscope.ops.norm.reference import Affine
from normscope.ops.norm.statistic import RMS
from normscope.ops.operation import Operation, Tensors, run_kernel
from normscope.ops.registry import choose_rotary
from normscope.ops.threads import thread_pool_for
from normscope.scope import Scope

_HEADS = Scope.parse("b s h [e]")


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate each head: (a, b) -> (a cos - b sin, a sin + b cos), where a and b are its halves."""
    if cos.dim() == 4:
        return apply_rotary(*_flatten_batch(x, cos, sin)).reshape(x.shape)
    backend = choose_rotary(x, None, cos, sin)
    if backend == "reference":
        return apply_rotary_reference(x, cos, sin)
    y: Tensor = ROTARY(backend, RotaryConfig(inverse=False), x, cos, sin)[0]
    return y


def rms_norm_rotary(x: Tensor, weight: Tensor | None, cos: Tensor, sin: Tensor, eps: float) -> Tensor:
    """Apply an RMS norm with a weight over each head, then the rotary embedding."""
    if cos.dim() == 4:
        x_in_line, cos, sin = _flatten_batch(x, cos, sin)
        return rms_norm_rotary(x_in_line, weight, cos, sin, eps).reshape(x.shape)
    backend = choose_rotary(x, weight, cos, sin)
    if backend == "reference":
        return rms_norm_rotary_reference(x, weight, cos, sin, eps)
    y: Tensor = RMS_NORM_ROTARY(backend, NormRotaryConfig(eps), x, weight, cos, sin)[0]
    return y


def _flatten_batch(x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Flatten rows with different positions into one row of b*s tokens, which the kernels support."""
    return x.flatten(0, 1)[None], cos.flatten(0, 1), sin.flatten(0, 1)


def apply_rotary_reference(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Reference implementation of `apply_rotary`."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1).to(x.dtype)


def rms_norm_rotary_reference(x: Tensor, weight: Tensor | None, cos: Tensor, sin: Tensor, eps: float) -> Tensor:
    """Reference implementation of `rms_norm_rotary`."""
    affine = Affine(weight, None, (1, 1, 1, x.shape[-1]))
    y, _ = reference.normalize_with_batch_statistics(
        x, _HEADS.bind(x.shape), statistic=RMS, eps=eps, affine=affine, mask=None
    )
    return apply_rotary_reference(y, cos, sin)


class RotaryConfig(NamedTuple):
    inverse: bool
    """Rotate by the opposite angle."""


class NormRotaryConfig(NamedTuple):
    eps: float


def _sizes(x: Tensor) -> tuple[int, int, int, int]:
    """Return the number of tokens, positions, heads and feature pairs."""
    b, s, heads, e = x.shape
    return b * s, s, heads, e // 2


def _rotate(config: RotaryConfig, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor]:
    wide = to_contiguous_float32(x)
    y = torch.empty_like(wide)
    arrays = addresses(wide, cos, sin, y)
    run_kernel("rotary", "apply_rotary", thread_pool_for(wide.numel()), arrays, _sizes(wide), config.inverse)
    return (y.to(x.dtype),)


ROTARY = Operation(
    "rotary",
    tensors="x cos sin",
    config=RotaryConfig,
    forward=_rotate,
    reference=lambda config, x, cos, sin: (apply_rotary_reference(x, cos, -sin if config.inverse else sin),),
    shapes=lambda config, x, *others: (x.new_empty(x.shape),),
    saves=lambda tensors, outputs: tensors[1:],
    adjoint=lambda config: RotaryConfig(not config.inverse),
)


def _norm_rotary(config: NormRotaryConfig, x: Tensor, weight: Tensor | None, cos: Tensor, sin: Tensor) -> tuple[Tensor]:
    wide, wide_weight = to_contiguous_float32(x), parameter_or(1.0, weight, x.shape[-1])
    y = torch.empty_like(wide)
    arrays = addresses(wide, wide_weight, cos, sin, y)
    run_kernel("rotary", "rms_norm_rotary", thread_pool_for(wide.numel()), arrays, _sizes(wide), config.eps)
    return (y.to(x.dtype),)


def _norm_rotary_backward(
    config: NormRotaryConfig, grads: Tensors, saved: Tensors, needed: list[bool]
) -> tuple[Tensor, Tensor | None]:
    x, weight, cos, sin = saved
    wide, dy = to_contiguous_float32(x), to_contiguous_float32(grads[0])
    wide_weight = parameter_or(1.0, weight, x.shape[-1])
    tokens, e = x.shape[0] * x.shape[1], x.shape[-1]
    blocks = min(64, tokens)  # depends on the tokens alone, for deterministic results
    sums, dx = empty_float64(blocks * e if needed[1] else 0), torch.empty_like(wide)
    dweight = empty_float32(e) if needed[1] else None
    arrays = addresses(wide, wide_weight, cos, sin, dy, dx, sums)
    sizes, pool = _sizes(wide), thread_pool_for(wide.numel())
    run_kernel("rotary", "rms_norm_rotary_backward", pool, arrays, *addresses(dweight), sizes, blocks, config.eps)
    return dx.to(x.dtype), match_parameter(dweight, weight)


RMS_NORM_ROTARY = Operation(
    "rms_norm_rotary",
    tensors="x weight? cos sin",
    config=NormRotaryConfig,
    forward=_norm_rotary,
    backward=_norm_rotary_backward,
    reference=lambda config, x, weight, cos, sin: (
        rms_norm_rotary_reference(x, weight, cos, sin, config.eps).contiguous(),
    ),
    shapes=lambda config, x, *others: (x.new_empty(x.shape),),
    gradient_of=(0, 1),
)
