"""Tensors as the kernels want them: float32, contiguous, and by their address; and what their callers share."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor


def in_float32(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float32 else x.float()


def in_order(x: Tensor) -> Tensor:
    """The numbers in float32, one after the other; the tensor itself where they are."""
    return x if x.dtype == torch.float32 and x.is_contiguous() else x.float().contiguous()


def alike(x: Tensor, other: Tensor) -> Tensor:
    """The numbers in the type and the order in memory of another tensor of that shape; itself where they are."""
    if x.dtype == other.dtype and x.stride() == other.stride():
        return x
    return torch.empty_like(other).copy_(x)


def address(x: Tensor | None) -> int:
    return 0 if x is None else x.data_ptr()


@lru_cache(maxsize=64)
def constant(value: float, count: int) -> Tensor:
    """So many times the same number: what stands in for a gain or a bias that is not there."""
    return torch.full((count,), value)


def is_learnt(*tensors: Tensor | None) -> bool:
    """Whether a backward pass will ask for the gradient of any of them."""
    if torch.is_grad_enabled():
        for tensor in tensors:
            if tensor is not None and tensor.requires_grad:
                return True
    return False


def direct_apply(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """The function's `apply` without the search for tensors that torch.func has left behind.

    The search takes as long as a small kernel. `switch.form_for` has let no such tensor through.
    """
    apply: Callable[..., Any] = super(torch.autograd.Function, function).apply  # type: ignore[misc]
    return apply
