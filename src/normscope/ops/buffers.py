"""Helpers for kernel callers: dtype and layout conversion, buffers, and autograd."""

from functools import lru_cache

import torch
from torch import Tensor


def to_contiguous_float32(x: Tensor) -> Tensor:
    """Convert to contiguous float32; return the tensor itself if it already is."""
    return x if x.dtype == torch.float32 and x.is_contiguous() else x.float().contiguous()


def match_layout(x: Tensor, other: Tensor) -> Tensor:
    """Convert to the dtype and strides of another tensor of the same shape; return x itself if they match."""
    if x.dtype == other.dtype and x.stride() == other.stride():
        return x
    return torch.empty_like(other).copy_(x)


def match_parameter(gradient: Tensor | None, parameter: Tensor | None) -> Tensor | None:
    """Convert a gradient to the shape and dtype of its parameter."""
    if gradient is None or parameter is None:
        return None
    if gradient.shape != parameter.shape:
        gradient = gradient.reshape(parameter.shape)
    return gradient if parameter.dtype == torch.float32 else gradient.to(parameter.dtype)


def address(x: Tensor | None) -> int:
    """Return the address of a tensor's memory, 0 for None."""
    return 0 if x is None else x.data_ptr()


def addresses(*tensors: Tensor | None) -> tuple[int, ...]:
    """Return the addresses of tensors, 0 for None."""
    return tuple([0 if x is None else x.data_ptr() for x in tensors])


@lru_cache(maxsize=64)
def constant_vector(value: float, count: int) -> Tensor:
    """Return a cached constant vector, used in place of a missing weight or bias."""
    return torch.full((count,), value, dtype=torch.float32, device="cpu")


def parameter_or(value: float, parameter: Tensor | None, count: int) -> Tensor:
    """Return a weight or bias as contiguous float32, or a constant vector if it is missing."""
    if parameter is None:
        return constant_vector(value, count)
    return (
        parameter
        if parameter.dtype == torch.float32 and parameter.is_contiguous()
        else to_contiguous_float32(parameter)
    )


# Kernels write to addresses, so buffers need an explicit dtype and device, whatever torch's defaults are.
_CPU = torch.device("cpu")


def empty_float32(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device=_CPU)


def empty_float64(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float64, device=_CPU)


def any_requires_grad(*tensors: Tensor | None) -> bool:
    """Return whether autograd needs the gradient of any of the tensors."""
    if torch.is_grad_enabled():
        for tensor in tensors:
            if tensor is not None and tensor.requires_grad:
                return True
    return False


def needs_differentiable_backward(g: Tensor | None) -> bool:
    """Return whether a backward pass is itself differentiated (double backward) or vectorized.

    It then uses the reference implementation, which consists of torch operations.
    """
    return (
        torch.is_grad_enabled()
        or torch._C._are_functorch_transforms_active()
        or (g is not None and torch._C._functorch.is_legacy_batchedtensor(g))  # is_grads_batched=True
    )
