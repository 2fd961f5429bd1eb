"""Tell which tensors can be measured, and describe them."""

from typing import TypeGuard

import torch
from torch import Tensor
from torch._subclasses import FakeTensor
from torch.nn.parameter import is_lazy


def is_measurable(value: object) -> TypeGuard[Tensor]:
    """Whether a value is a tensor of floating-point values that can be read: no integers, no meta or fake tensors."""
    return (
        isinstance(value, Tensor)
        and value.is_floating_point()
        and not value.is_nested
        and value.layout == torch.strided
        and not value.is_meta
        and not is_lazy(value)
        and not isinstance(value, FakeTensor)
        and not torch._C._functorch.is_functorch_wrapped_tensor(value)
    )


def is_readable(tensor: Tensor) -> bool:
    """Like `is_measurable`, but also true for integers."""
    is_integer = tensor.dtype in (torch.int64, torch.int32) and not tensor.is_nested and tensor.layout == torch.strided
    return is_measurable(tensor) or (is_integer and not tensor.is_meta and not isinstance(tensor, FakeTensor))


def shape_of(tensor: Tensor) -> tuple[int, ...]:
    """Return the shape; of a nested tensor, whose rows differ in shape, the number of rows."""
    return (int(tensor.size(0)),) if tensor.is_nested else tuple(tensor.shape)


def sample_elements(tensor: Tensor, count: int) -> Tensor:
    """Return about `count` elements, always the same ones. They share the tensor's memory."""
    flat = tensor.detach().reshape(-1)
    return flat[:: max(1, -(-flat.numel() // count))]


def is_only_masked(tensor: Tensor) -> bool:
    """Whether all non-finite values are minus infinity, as in attention masks."""
    tensor = tensor.detach().float()
    return not bool((torch.isnan(tensor) | torch.isposinf(tensor)).any())
