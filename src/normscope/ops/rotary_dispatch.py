"""Turning queries and keys by their places, with or without the rms norm of each head before it.

Axes: x is (b, s, heads, e); cos and sin are (s, 1, e/2), one row of angles for each place, or (b, s, 1, e/2) where the
rows of a batch stand at places of their own.

| what                                                          | form                                             |
|---------------------------------------------------------------|--------------------------------------------------|
| float32, bfloat16, float16 on the CPU, tables of float32      | `rotary`: one pass over memory, there and back   |
| float64, other devices, learnt tables, huge heads             | the steps below, in plain torch                  |

Both give the same numbers. `normscope.ops.kernel_mode` says when kernels may run at all.
"""

import torch
from torch import Tensor

from normscope.ops import kernel_mode as switch
from normscope.ops import norm_reference as normalize
from normscope.ops.kernel_mode import Form
from normscope.ops.norm_reference import Affine
from normscope.ops.numba_loader import kernels
from normscope.scope import Scope

LONGEST = 1024
"""The largest e that the kernels have room for."""

_HEADS = Scope.parse("b s h [e]")


def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """(a, b) -> (a cos - b sin, a sin + b cos), a and b the halves of a head."""
    if cos.dim() == 4:
        return turn(*_as_one_text(x, cos, sin)).reshape(x.shape)
    form = _form(x, None, cos, sin)
    fused = None if form == "steps" else kernels("rotary")
    if fused is None:
        return turn_by_steps(x, cos, sin)
    y: Tensor = fused.turn(x, cos, sin, form)
    return y


def normalize_and_turn(x: Tensor, weight: Tensor | None, cos: Tensor, sin: Tensor, eps: float) -> Tensor:
    """Each head over its root mean square, times a gain along e, and turned."""
    if cos.dim() == 4:
        x_in_line, cos, sin = _as_one_text(x, cos, sin)
        return normalize_and_turn(x_in_line, weight, cos, sin, eps).reshape(x.shape)
    form = _form(x, weight, cos, sin)
    fused = None if form == "steps" else kernels("rotary")
    if fused is None:
        return normalize_and_turn_by_steps(x, weight, cos, sin, eps)
    y: Tensor = fused.normalize_and_turn(x, weight, cos, sin, eps, form)
    return y


def _as_one_text(x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows at places of their own are one row of b*s tokens whose places jump: no loop has to know of them."""
    return x.flatten(0, 1)[None], cos.flatten(0, 1), sin.flatten(0, 1)


def _form(x: Tensor, weight: Tensor | None, cos: Tensor, sin: Tensor) -> Form:
    """How it is to be computed: the steps, wherever the kernels do not fit."""
    fits = (
        x.dtype in switch.KINDS
        and (weight is None or weight.dtype in switch.KINDS)
        and cos.dtype == sin.dtype == torch.float32
        and cos.shape == sin.shape == (x.shape[1], 1, x.shape[3] // 2)
        and cos.is_contiguous()
        and sin.is_contiguous()
        and not (cos.requires_grad or sin.requires_grad)
        and x.shape[-1] <= LONGEST
        and x.numel() > 0
    )
    return switch.form_for(x, weight, cos, sin) if fits else "steps"


def turn_by_steps(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The readable form."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1).to(x.dtype)


def normalize_and_turn_by_steps(x: Tensor, weight: Tensor | None, cos: Tensor, sin: Tensor, eps: float) -> Tensor:
    """The readable form: first the one, then the other."""
    affine = Affine(weight, None, (1, 1, 1, x.shape[-1]))
    y, _ = normalize.by_batch(x, _HEADS.bind(x.shape), statistic="rms", eps=eps, affine=affine, mask=None)
    return turn_by_steps(y, cos, sin)
