"""Activations: a reference implementation in torch for each, and fused kernels for the CPU.

`fused/activations.py` has a forward and a backward kernel for each activation. Only the input is saved.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from normscope.ops.buffers import address
from normscope.ops.operation import Operation, Tensors, fused_module, run_kernel
from normscope.ops.registry import choose_activation
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


class ActivationConfig(NamedTuple):
    name: str


def activate(name: str, x: Tensor, up: Tensor | None = None) -> Tensor:
    """Apply an activation by name: act(x), or act(x) * up if gated."""
    if has_torch_function((x, up)):  # visible to __torch_function__ modes and subclasses
        watched: Tensor = handle_torch_function(activate, (x, up), name, x, up)
        return watched
    backend = choose_activation(x, up)
    if backend == "reference":
        return _reference(ActivationConfig(name), x, up)[0]
    y: Tensor = ACTIVATION(backend, ActivationConfig(name), x, up)[0]
    return y


def _reference(config: ActivationConfig, x: Tensor, up: Tensor | None) -> tuple[Tensor]:
    function = REFERENCE_ACTIVATIONS[config.name]
    return (function(x) if up is None else function(x, up),)


def _have_same_layout(x: Tensor, *others: Tensor | None) -> bool:
    """Return whether the tensors are dense with equal strides, so that a kernel can iterate over their memory."""
    for other in others:
        if other is not None and other.stride() != x.stride():
            return False
    return x.is_contiguous() or torch.empty_like(x).stride() == x.stride()


def _to_kernel_layout(*tensors: Tensor) -> list[Tensor]:
    """Convert the tensors to float32 with equal strides."""
    if all([t.dtype == torch.float32 and t.is_contiguous() for t in tensors]):  # noqa: C419 # a list is faster
        return list(tensors)
    if _have_same_layout(*tensors):
        return [t.float() for t in tensors]
    return [t.float().contiguous() for t in tensors]


def _kind(name: str) -> int:
    kind: int = fused_module("activations").KINDS.index(name)
    return kind


def _forward(config: ActivationConfig, x: Tensor, up: Tensor | None) -> tuple[Tensor]:
    inputs = _to_kernel_layout(x) if up is None else _to_kernel_layout(x, up)
    y, count = torch.empty_like(inputs[0]), x.numel()
    arrays = inputs[0].data_ptr(), 0 if up is None else inputs[1].data_ptr(), y.data_ptr()
    run_kernel("activations", "forward", thread_pool_for(count), _kind(config.name), *arrays, count)
    return (y if inputs[0] is x else y.to(x.dtype),)


def _backward(config: ActivationConfig, grads: Tensors, saved: Tensors, needed: list[bool]) -> list[Tensor | None]:
    x, up, g = saved[0], saved[1], grads[0]
    assert x is not None
    assert g is not None
    wide, gradient, *others = _to_kernel_layout(x, g) if up is None else _to_kernel_layout(x, g, up)
    results = [torch.empty_like(wide) for _ in range(1 + len(others))]
    arrays = wide, others[0] if others else None, gradient, results[0], results[1] if others else None
    pool = thread_pool_for(x.numel())
    run_kernel("activations", "backward", pool, _kind(config.name), *map(address, arrays), x.numel())
    converted = results if wide is x else [result.to(x.dtype) for result in results]
    return [*converted, None][:2]


def _empty_like(x: Tensor, *others: Tensor | None) -> Tensor:
    """Return an empty tensor with the strides of the kernel's result."""
    if _have_same_layout(x, *others):
        return torch.empty_like(x)
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _shapes(config: ActivationConfig, x: Tensor, up: Tensor | None) -> tuple[Tensor]:
    return (_empty_like(x, up),)


def _grad_shapes(config: ActivationConfig, grads: Tensors, saved: Tensors) -> list[Tensor | None]:
    x, up = saved
    assert x is not None
    empty = _empty_like(x, up, grads[0])
    return [empty, None if up is None else torch.empty_like(empty)]


ACTIVATION = Operation(
    "activation",
    tensors="x up?",
    config=ActivationConfig,
    forward=_forward,
    backward=_backward,
    reference=_reference,
    shapes=_shapes,
    gradient_of=(0, 1),
    grad_shapes=_grad_shapes,
)
