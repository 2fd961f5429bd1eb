"""Rotary embeddings as differentiable functions on the fused kernels, alone and fused with an RMS norm.

`fused/rotary.py` has the kernels. This file chooses the number of threads, saves tensors for the backward pass and
defines it. The backward pass of a rotation is the inverse rotation, which needs no saved input; with the norm the input
is saved. Double backward, and everything if numba fails, uses the reference implementation.
"""

from typing import Any

import torch
from torch import Tensor

from normscope.ops import rotary_dispatch
from normscope.ops.buffers import (
    any_requires_grad,
    constant_vector,
    empty_float32,
    empty_float64,
    fast_apply,
    needs_differentiable_backward,
    reference_gradients,
    to_contiguous_float32,
)
from normscope.ops.fused import rotary as loops
from normscope.ops.kernel_mode import Backend, as_operator, try_kernel
from normscope.ops.threads import thread_pool_for


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor, backend: Backend) -> Tensor:
    """Apply the rotary embedding with tables (s, 1, e/2) to x (b, s, heads, e)."""
    if backend == "operator":
        y = _rotary_operator(x, cos, sin, False)
    elif any_requires_grad(x):
        y = _apply_rotary(x, cos, sin, False)
    else:
        y = _rotate(x, cos, sin, False)
    result: Tensor = y
    return result


def rms_norm_rotary(x: Tensor, weight: Tensor | None, cos: Tensor, sin: Tensor, eps: float, backend: Backend) -> Tensor:
    """Apply an RMS norm with a gain over each head, then the rotary embedding."""
    if backend == "operator":
        y = _operator(x, weight, cos, sin, eps)
    elif any_requires_grad(x, weight):
        y = _apply(x, weight, cos, sin, eps)
    else:
        y = _forward(x, weight, cos, sin, eps)
    result: Tensor = y
    return result


def _sizes(x: Tensor) -> tuple[int, int, int, int]:
    """Return the number of tokens, positions, heads and feature pairs."""
    b, s, heads, e = x.shape
    return b * s, s, heads, e // 2


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, inverse: bool) -> Tensor:
    wide = to_contiguous_float32(x)
    y = torch.empty_like(wide)
    done = try_kernel(
        loops.apply_rotary, *thread_pool_for(wide.numel()), wide.data_ptr(), cos.data_ptr(), sin.data_ptr(),
        y.data_ptr(), *_sizes(wide), inverse,
    )  # fmt: skip
    if done:
        return y.to(x.dtype)
    return rotary_dispatch.apply_rotary_reference(wide, cos, -sin if inverse else sin).to(x.dtype)


class _RotaryFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, inverse: bool) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.inverse = inverse
        return _rotate(x, cos, sin, inverse)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        if needs_differentiable_backward(grads[0]):
            return rotary_dispatch.apply_rotary_reference(grads[0], cos, sin if ctx.inverse else -sin), None, None, None
        return _rotate(grads[0], cos, sin, not ctx.inverse), None, None, None


_apply_rotary = fast_apply(_RotaryFunction)


def _forward(x: Tensor, weight: Tensor | None, cos: Tensor, sin: Tensor, eps: float) -> Tensor:
    wide = to_contiguous_float32(x)
    y, gain = torch.empty_like(wide), _gain(weight, x)
    done = try_kernel(
        loops.rms_norm_rotary, *thread_pool_for(wide.numel()), wide.data_ptr(), gain.data_ptr(), cos.data_ptr(),
        sin.data_ptr(), y.data_ptr(), *_sizes(wide), eps,
    )  # fmt: skip
    return y.to(x.dtype) if done else rotary_dispatch.rms_norm_rotary_reference(x, weight, cos, sin, eps).contiguous()


def _backward(
    g: Tensor, x: Tensor, weight: Tensor | None, cos: Tensor, sin: Tensor, eps: float, needs_grad: bool
) -> tuple[Tensor, Tensor]:
    """Return the gradients of input and gain; the latter is empty if not needed."""
    wide, gain, g = to_contiguous_float32(x), _gain(weight, x), to_contiguous_float32(g)
    tokens, e = x.shape[0] * x.shape[1], x.shape[-1]
    blocks = min(64, tokens)  # depends on the tokens alone, for deterministic results
    sums = empty_float64(blocks * e if needs_grad else 0)
    dx, dweight = torch.empty_like(wide), empty_float32(e if needs_grad else 0)
    done = try_kernel(
        loops.rms_norm_rotary_backward, *thread_pool_for(wide.numel()), wide.data_ptr(), gain.data_ptr(),
        cos.data_ptr(), sin.data_ptr(), g.data_ptr(), dx.data_ptr(), dweight.data_ptr(), sums.data_ptr(), blocks,
        *_sizes(wide), eps, needs_grad,
    )  # fmt: skip
    if done:
        return dx.to(x.dtype), dweight
    with torch.enable_grad():
        leaf = weight.detach().requires_grad_() if weight is not None and needs_grad else weight
        found = _reference_gradients(g, x.detach().requires_grad_(), leaf, cos, sin, eps)
    dx, dweight = (empty_float32(0) if f is None else f.detach().contiguous() for f in found)
    return dx, dweight.float()


class _NormRotaryFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, cos: Tensor, sin: Tensor, eps: float) -> Tensor:
        ctx.save_for_backward(x, weight, cos, sin)
        ctx.eps = eps
        return _forward(x, weight, cos, sin, eps)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, cos, sin = ctx.saved_tensors
        if needs_differentiable_backward(grads[0]):
            return *_reference_gradients(grads[0], x, weight, cos, sin, ctx.eps), None, None, None
        needs_grad = ctx.needs_input_grad[1]
        dx, dweight = _backward(grads[0], x, weight, cos, sin, ctx.eps, needs_grad)
        return dx, dweight.to(weight.dtype) if needs_grad else None, None, None, None


_apply = fast_apply(_NormRotaryFunction)


def _gain(weight: Tensor | None, x: Tensor) -> Tensor:
    return constant_vector(1.0, x.shape[-1]) if weight is None else to_contiguous_float32(weight)


def _reference_gradients(
    g: Tensor, x: Tensor, weight: Tensor | None, cos: Tensor, sin: Tensor, eps: float
) -> list[Tensor | None]:
    return reference_gradients(
        lambda: rotary_dispatch.rms_norm_rotary_reference(x, weight, cos, sin, eps), (x, weight), g
    )


_rotary_operator = as_operator("normscope::rotary", _rotate)
_operator = as_operator("normscope::rms_norm_rotary", _forward)
_backward_operator = as_operator("normscope::rms_norm_rotary_backward", _backward)


@_rotary_operator.register_fake
def _(x: Tensor, cos: Tensor, sin: Tensor, inverse: bool) -> Tensor:
    return x.new_empty(x.shape)


@_operator.register_fake
def _(x: Tensor, weight: Any, cos: Tensor, sin: Tensor, eps: float) -> Tensor:
    return x.new_empty(x.shape)


@_backward_operator.register_fake
def _(
    g: Tensor, x: Tensor, weight: Any, cos: Tensor, sin: Tensor, eps: float, needs_grad: bool
) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape[-1] if needs_grad else 0, dtype=torch.float32)


def _setup_rotary_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, cos, sin, ctx.inverse = inputs
    ctx.save_for_backward(cos, sin)


def _rotary_operator_backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    return _rotary_operator(g, *ctx.saved_tensors, not ctx.inverse), None, None, None


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.eps = inputs
    ctx.save_for_backward(*tensors)


def _operator_backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, cos, sin = ctx.saved_tensors
    needs_grad = ctx.needs_input_grad[1]
    dx, dweight = _backward_operator(g, x, weight, cos, sin, ctx.eps, needs_grad)
    return dx, dweight.to(weight.dtype) if needs_grad else None, None, None, None


_rotary_operator.register_autograd(_rotary_operator_backward, setup_context=_setup_rotary_context)
_operator.register_autograd(_operator_backward, setup_context=_setup_context)
