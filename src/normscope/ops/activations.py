"""Activations: a reference implementation in torch for each, and fused kernels for the CPU.

`fused/activations.py` has a forward and a backward kernel for each activation. Only the input is saved. Other dtypes
and devices, double backward, and everything if numba fails use the reference implementation.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from normscope.ops.buffers import (
    any_requires_grad,
    empty_float32,
    fast_apply,
    needs_differentiable_backward,
    reference_gradients,
)
from normscope.ops.kernel_mode import SUPPORTED_DTYPES, as_operator, select_backend, try_kernel
from normscope.ops.threads import thread_pool_for


def _relu2(x: Tensor) -> Tensor:
    return F.relu(x).square()


def _gated(act: Callable[[Tensor], Tensor], gate: Tensor, up: Tensor) -> Tensor:
    return act(gate) * up


REFERENCE_ACTIVATIONS: Mapping[str, Callable[..., Tensor]] = {
    "relu2": _relu2,
    "gelu-tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "swiglu": partial(_gated, F.silu),
    "reglu": partial(_gated, F.relu),
    "geglu": partial(_gated, F.gelu),
}
"""The first three take x; the gated ones take gate and up. Plain GELU is already a single kernel in torch."""


def activate(name: str, x: Tensor, up: Tensor | None = None) -> Tensor:
    """Apply an activation by name: act(x), or act(x) * up if gated."""
    if has_torch_function((x, up)):  # visible to __torch_function__ modes and subclasses
        watched: Tensor = handle_torch_function(activate, (x, up), name, x, up)
        return watched
    backend = select_backend(x, up)
    if backend == "reference" or not _is_supported(x, up):
        return _reference(name, x, up)
    if backend == "operator":
        y: Tensor = _operator(x, up, name)
    elif any_requires_grad(x, up):
        y = _apply(x, up, name)
    else:
        y = _forward(x, up, name)
    return y


def _is_supported(x: Tensor, up: Tensor | None) -> bool:
    if x.dtype not in SUPPORTED_DTYPES or x.numel() == 0:
        return False
    return up is None or (up.dtype == x.dtype and up.shape == x.shape)


def _reference(name: str, x: Tensor, up: Tensor | None) -> Tensor:
    return REFERENCE_ACTIVATIONS[name](x) if up is None else REFERENCE_ACTIVATIONS[name](x, up)


def _have_same_layout(x: Tensor, *others: Tensor | None) -> bool:
    """Return whether the tensors are dense with equal strides, so that a kernel can iterate over their memory."""
    for other in others:
        if other is not None and other.stride() != x.stride():
            return False
    return x.is_contiguous() or torch.empty_like(x).stride() == x.stride()


def _to_kernel_layout(x: Tensor, *others: Tensor | None) -> list[Tensor | None]:
    """Convert the tensors to float32 with equal strides."""
    if all([t is None or (t.dtype == torch.float32 and t.is_contiguous()) for t in (x, *others)]):  # noqa: C419
        return [x, *others]
    if _have_same_layout(x, *others):
        return [None if t is None else t.float() for t in (x, *others)]
    return [None if t is None else t.float().contiguous() for t in (x, *others)]


@lru_cache
def _kernels() -> tuple[Any, Any]:
    from normscope.ops.fused import activations, elementwise  # imports numba, which may fail

    return activations.KERNELS, elementwise


def _run(name: str, pass_: str, count: int, addresses: list[int]) -> None:
    kernels, elementwise = _kernels()
    elementwise.run(
        *thread_pool_for(count), getattr(kernels[name], pass_).address, *addresses, *[0] * (5 - len(addresses)), count
    )


def _forward(x: Tensor, up: Tensor | None, name: str) -> Tensor:
    wide, other = _to_kernel_layout(x, up)
    assert wide is not None
    y = torch.empty_like(wide)
    inputs = (wide,) if other is None else (wide, other)
    if try_kernel(_run, name, "forward", x.numel(), [t.data_ptr() for t in (*inputs, y)]):
        return y if wide is x else y.to(x.dtype)
    return _reference(name, x, up)


def _backward(g: Tensor, x: Tensor, up: Tensor | None, name: str) -> tuple[Tensor, Tensor]:
    """Return the gradients of x and of up; the second is empty if the activation is not gated."""
    wide, other, gradient = _to_kernel_layout(x, up, g)
    assert wide is not None
    assert gradient is not None
    dx = torch.empty_like(wide)
    if other is None:
        dup = torch.empty(0, dtype=x.dtype, device="cpu")
        tensors = [wide, gradient, dx]
    else:
        dup = torch.empty_like(wide)
        tensors = [wide, other, gradient, dx, dup]
    if try_kernel(_run, name, "backward", x.numel(), [t.data_ptr() for t in tensors]):
        return (dx, dup) if wide is x else (dx.to(x.dtype), dup.to(x.dtype))
    leaf, gate = x.detach().requires_grad_(), None if up is None else up.detach().requires_grad_()
    gradients = _reference_gradients(g, leaf, gate, name)
    dx, dup = (empty_float32(0) if f is None else f.detach() for f in gradients)
    return dx, dup


def _reference_gradients(g: Tensor, x: Tensor, up: Tensor | None, name: str) -> list[Tensor | None]:
    return reference_gradients(lambda: _reference(name, x, up), (x, up), g)


class _ActivationFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, up: Tensor | None, name: str) -> Tensor:
        ctx.save_for_backward(x, up)
        ctx.name = name
        return _forward(x, up, name)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, up = ctx.saved_tensors
        if needs_differentiable_backward(grads[0]):
            return *_reference_gradients(grads[0], x, up, ctx.name), None
        dx, dup = _backward(grads[0], x, up, ctx.name)
        return *_needed_gradients(dx, dup, ctx.needs_input_grad), None


_apply = fast_apply(_ActivationFunction)


def _needed_gradients(dx: Tensor, dup: Tensor, needed: tuple[bool, ...]) -> tuple[Tensor | None, Tensor | None]:
    return dx if needed[0] else None, dup if needed[1] else None


_operator = as_operator("normscope::activation", _forward)
_backward_operator = as_operator("normscope::activation_backward", _backward)


@_operator.register_fake
def _(x: Tensor, up: Any, name: str) -> Tensor:
    return _empty_result(x, up)


@_backward_operator.register_fake
def _(g: Tensor, x: Tensor, up: Any, name: str) -> tuple[Tensor, Tensor]:
    dx = _empty_result(x, up, g)
    return dx, x.new_empty(0) if up is None else torch.empty_like(dx)


def _empty_result(x: Tensor, *others: Tensor | None) -> Tensor:
    """Return an empty tensor with the strides of the kernel's result."""
    if _have_same_layout(x, *others):
        return torch.empty_like(x)
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, up, ctx.name = inputs
    ctx.save_for_backward(x, up)


def _operator_backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    x, up = ctx.saved_tensors
    dx, dup = _backward_operator(g, x, up, ctx.name)
    return *_needed_gradients(dx, dup, ctx.needs_input_grad), None


_operator.register_autograd(_operator_backward, setup_context=_setup_context)
