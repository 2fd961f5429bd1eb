"""Activations with a fused kernel for the CPU, and a reference implementation in torch for each.

`normscope.blocks.activations` lists the activations of models; start there to add one. `fused/activations.py` has a
forward and a backward kernel for each activation. Only the input is saved.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from normscope.ops.buffers import addresses, to_contiguous_float32
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


def _to_kernel_layout(*tensors: Tensor | None) -> list[Any]:
    """Convert the tensors that are given to float32 with equal strides."""
    given = [t for t in tensors if t is not None]
    if all([t.dtype == torch.float32 and t.is_contiguous() for t in given]):  # noqa: C419 # a list is faster
        return list(tensors)
    convert = torch.Tensor.float if _have_same_layout(*given) else to_contiguous_float32
    return [None if t is None else convert(t) for t in tensors]


def _kind(name: str) -> int:
    kind: int = fused_module("activations").KINDS.index(name)
    return kind


def _forward(config: ActivationConfig, *tensors: Any) -> tuple[Tensor]:
    x, up = _to_kernel_layout(*tensors)
    y, count = torch.empty_like(x), x.numel()
    run_kernel("activations", "forward", thread_pool_for(count), _kind(config.name), addresses(x, up, y), count)
    return (y if x is tensors[0] else y.to(tensors[0].dtype),)


def _backward(config: ActivationConfig, grads: Tensors, saved: Tensors, needed: list[bool]) -> list[Tensor | None]:
    x, dy, up = _to_kernel_layout(saved[0], grads[0], saved[1])
    dx, dup = torch.empty_like(x), None if up is None else torch.empty_like(x)
    arrays = addresses(x, up, dy, dx, dup)
    run_kernel("activations", "backward", thread_pool_for(x.numel()), _kind(config.name), arrays, x.numel())
    if x is saved[0]:
        return [dx, dup]
    return [None if result is None else result.to(saved[0].dtype) for result in (dx, dup)]


def _empty_like(x: Tensor, *others: Tensor | None) -> Tensor:
    """Return an empty tensor with the strides of the kernel's result."""
    if _have_same_layout(x, *others):
        return torch.empty_like(x)
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _grad_shapes(config: ActivationConfig, grads: Tensors, saved: Tensors) -> list[Tensor | None]:
    x, up = saved
    empty = _empty_like(x, up, grads[0])
    return [empty, None if up is None else torch.empty_like(empty)]


ACTIVATION = Operation(
    "activation",
    tensors="x up?",
    config=ActivationConfig,
    forward=_forward,
    backward=_backward,
    reference=_reference,
    shapes=lambda config, x, up: (_empty_like(x, up),),
    gradient_of=(0, 1),
    grad_shapes=_grad_shapes,
)
