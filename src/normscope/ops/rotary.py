"""The fused rotary kernels as differentiable functions of tensors.

`fused/rotary.py` has the loops; here is who calls them: how many threads, what is kept, and the backward pass. To turn
back is to turn by the opposite angle, for which nothing of the input is kept; with the norm it is the input alone. A
backward pass of the norm that is itself to be differentiated takes the readable form, and so does everything where
numba fails.
"""

from typing import Any

import torch
from torch import Tensor

from normscope.ops import rotary_dispatch as steps
from normscope.ops.buffers import (
    constant,
    direct_apply,
    gradients_of,
    in_order,
    is_learnt,
    is_out_of_the_ordinary,
    room32,
    room64,
)
from normscope.ops.fused import rotary as loops
from normscope.ops.kernel_mode import Form, as_operator, attempt
from normscope.ops.threads import pool_for


def turn(x: Tensor, cos: Tensor, sin: Tensor, form: Form) -> Tensor:
    """Turn x (b, s, heads, e) by the angles of its places, whose tables are (s, 1, e/2)."""
    if form == "operator":
        y = _turn_operator(x, cos, sin, False)
    elif is_learnt(x):
        y = _apply_turn(x, cos, sin, False)
    else:
        y = _turn(x, cos, sin, False)
    result: Tensor = y
    return result


def normalize_and_turn(x: Tensor, weight: Tensor | None, cos: Tensor, sin: Tensor, eps: float, form: Form) -> Tensor:
    """Take each head over its root mean square, times a gain along e, and turn it."""
    if form == "operator":
        y = _operator(x, weight, cos, sin, eps)
    elif is_learnt(x, weight):
        y = _apply(x, weight, cos, sin, eps)
    else:
        y = _forward(x, weight, cos, sin, eps)
    result: Tensor = y
    return result


def _sizes(x: Tensor) -> tuple[int, int, int, int]:
    """How many tokens, places, heads, and pairs of features."""
    b, s, heads, e = x.shape
    return b * s, s, heads, e // 2


def _turn(x: Tensor, cos: Tensor, sin: Tensor, back: bool) -> Tensor:
    wide = in_order(x)
    y = torch.empty_like(wide)
    done = attempt(
        loops.turn, *pool_for(wide.numel()), wide.data_ptr(), cos.data_ptr(), sin.data_ptr(), y.data_ptr(),
        *_sizes(wide), back,
    )  # fmt: skip
    if done:
        return y.to(x.dtype)
    return steps.turn_by_steps(wide, cos, -sin if back else sin).to(x.dtype)


class _Turn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, back: bool) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.back = back
        return _turn(x, cos, sin, back)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        if is_out_of_the_ordinary(grads[0]):
            return steps.turn_by_steps(grads[0], cos, sin if ctx.back else -sin), None, None, None
        return _turn(grads[0], cos, sin, not ctx.back), None, None, None


_apply_turn = direct_apply(_Turn)


def _forward(x: Tensor, weight: Tensor | None, cos: Tensor, sin: Tensor, eps: float) -> Tensor:
    wide = in_order(x)
    y, gain = torch.empty_like(wide), _gain(weight, x)
    done = attempt(
        loops.normalize_and_turn, *pool_for(wide.numel()), wide.data_ptr(), gain.data_ptr(), cos.data_ptr(),
        sin.data_ptr(), y.data_ptr(), *_sizes(wide), eps,
    )  # fmt: skip
    return y.to(x.dtype) if done else steps.normalize_and_turn_by_steps(x, weight, cos, sin, eps).contiguous()


def _backward(
    g: Tensor, x: Tensor, weight: Tensor | None, cos: Tensor, sin: Tensor, eps: float, learns: bool
) -> tuple[Tensor, Tensor]:
    """The gradients of the input and of the gain; that one is empty if it is not learnt."""
    wide, gain, g = in_order(x), _gain(weight, x), in_order(g)
    tokens, e = x.shape[0] * x.shape[1], x.shape[-1]
    blocks = min(64, tokens)  # a number that depends on the tokens alone, so that the bits do as well
    sums = room64(blocks * e if learns else 0)
    dx, dweight = torch.empty_like(wide), room32(e if learns else 0)
    done = attempt(
        loops.normalize_and_turn_backward, *pool_for(wide.numel()), wide.data_ptr(), gain.data_ptr(), cos.data_ptr(),
        sin.data_ptr(), g.data_ptr(), dx.data_ptr(), dweight.data_ptr(), sums.data_ptr(), blocks, *_sizes(wide), eps,
        learns,
    )  # fmt: skip
    if done:
        return dx.to(x.dtype), dweight
    with torch.enable_grad():
        learnt = weight.detach().requires_grad_() if weight is not None and learns else weight
        found = _readable_gradients(g, x.detach().requires_grad_(), learnt, cos, sin, eps)
    dx, dweight = (room32(0) if f is None else f.detach().contiguous() for f in found)
    return dx, dweight.float()


class _NormalizeAndTurn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, cos: Tensor, sin: Tensor, eps: float) -> Tensor:
        ctx.save_for_backward(x, weight, cos, sin)
        ctx.eps = eps
        return _forward(x, weight, cos, sin, eps)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, cos, sin = ctx.saved_tensors
        if is_out_of_the_ordinary(grads[0]):
            return *_readable_gradients(grads[0], x, weight, cos, sin, ctx.eps), None, None, None
        learns = ctx.needs_input_grad[1]
        dx, dweight = _backward(grads[0], x, weight, cos, sin, ctx.eps, learns)
        return dx, dweight.to(weight.dtype) if learns else None, None, None, None


_apply = direct_apply(_NormalizeAndTurn)


def _gain(weight: Tensor | None, x: Tensor) -> Tensor:
    return constant(1.0, x.shape[-1]) if weight is None else in_order(weight)


def _readable_gradients(
    g: Tensor, x: Tensor, weight: Tensor | None, cos: Tensor, sin: Tensor, eps: float
) -> list[Tensor | None]:
    return gradients_of(lambda: steps.normalize_and_turn_by_steps(x, weight, cos, sin, eps), (x, weight), g)


_turn_operator = as_operator("normscope::turn", _turn)
_operator = as_operator("normscope::normalize_and_turn", _forward)
_backward_operator = as_operator("normscope::normalize_and_turn_backward", _backward)


@_turn_operator.register_fake
def _(x: Tensor, cos: Tensor, sin: Tensor, back: bool) -> Tensor:
    return x.new_empty(x.shape)


@_operator.register_fake
def _(x: Tensor, weight: Any, cos: Tensor, sin: Tensor, eps: float) -> Tensor:
    return x.new_empty(x.shape)


@_backward_operator.register_fake
def _(g: Tensor, x: Tensor, weight: Any, cos: Tensor, sin: Tensor, eps: float, learns: bool) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape[-1] if learns else 0, dtype=torch.float32)


def _keep_turn(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, cos, sin, ctx.back = inputs
    ctx.save_for_backward(cos, sin)


def _turn_back(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    return _turn_operator(g, *ctx.saved_tensors, not ctx.back), None, None, None


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.eps = inputs
    ctx.save_for_backward(*tensors)


def _pull_back(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, cos, sin = ctx.saved_tensors
    learns = ctx.needs_input_grad[1]
    dx, dweight = _backward_operator(g, x, weight, cos, sin, ctx.eps, learns)
    return dx, dweight.to(weight.dtype) if learns else None, None, None, None


_turn_operator.register_autograd(_turn_back, setup_context=_keep_turn)
_operator.register_autograd(_pull_back, setup_context=_keep)
