"""Tensors as the kernels want them: float32, contiguous, and by their address; and what their callers share."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor


def to_float32(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float32 else x.float()


def to_contiguous_float32(x: Tensor) -> Tensor:
    """The numbers in float32, one after the other; the tensor itself where they are."""
    return x if x.dtype == torch.float32 and x.is_contiguous() else x.float().contiguous()


def all_contiguous(x: Tensor, *others: Tensor | None) -> Any:
    """All of them, each contiguous; themselves where they are."""
    return x.contiguous(), *[None if t is None else t.contiguous() for t in others]


def match_layout(x: Tensor, other: Tensor) -> Tensor:
    """The numbers in the type and the order in memory of another tensor of that shape; itself where they are."""
    if x.dtype == other.dtype and x.stride() == other.stride():
        return x
    return torch.empty_like(other).copy_(x)


def address(x: Tensor | None) -> int:
    return 0 if x is None else x.data_ptr()


@lru_cache(maxsize=64)
def constant_vector(value: float, count: int) -> Tensor:
    """So many times the same number: what stands in for a gain or a bias that is not there."""
    return torch.full((count,), value, dtype=torch.float32, device="cpu")


# The kernels write by address: what they write to has their type and place, whatever torch's defaults are.
_CPU = torch.device("cpu")


def empty_float32(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device=_CPU)


def empty_float64(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float64, device=_CPU)


def any_requires_grad(*tensors: Tensor | None) -> bool:
    """Whether a backward pass will ask for the gradient of any of them."""
    if torch.is_grad_enabled():
        for tensor in tensors:
            if tensor is not None and tensor.requires_grad:
                return True
    return False


def fast_apply(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """The function's `apply` without the search for tensors that torch.func has left behind.

    The search takes as long as a small kernel. `switch.select_backend` has let no such tensor through.
    """
    apply: Callable[..., Any] = super(torch.autograd.Function, function).apply  # type: ignore[misc]
    return apply


def reference_gradients(
    readable: Callable[[], Tensor], given: Sequence[Tensor | None], g: Tensor
) -> list[Tensor | None]:
    """The gradients that torch finds for a readable form, of those of the given tensors that learn."""
    further = torch.is_grad_enabled()
    learnt = [t for t in given if t is not None and t.requires_grad]
    with torch.enable_grad():
        y = readable()
        found = iter(torch.autograd.grad(y, learnt, g.to(y.dtype), create_graph=further))
    return [next(found) if t is not None and t.requires_grad else None for t in given]


def needs_differentiable_backward(g: Tensor | None) -> bool:
    """Whether a backward pass is to be differentiated in its turn, or runs for many gradients at once.

    Then the readable form takes over, whose every step torch knows.
    """
    return (
        torch.is_grad_enabled()
        or torch._C._are_functorch_transforms_active()
        or (g is not None and torch._C._functorch.is_legacy_batchedtensor(g))  # is_grads_batched=True
    )
