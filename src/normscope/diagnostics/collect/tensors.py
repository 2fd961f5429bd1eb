"""Tell which tensors can be measured, and describe them."""

import torch
from torch import Tensor
from torch._subclasses import FakeTensor
from torch.nn.parameter import is_lazy


def is_measurable(tensor: Tensor) -> bool:
    """Whether a tensor holds floating-point values that can be read: no integers, no complex, meta or fake tensors."""
    return (
        tensor.is_floating_point()
        and not tensor.is_nested
        and tensor.layout == torch.strided
        and not tensor.is_meta
        and not is_lazy(tensor)
        and not isinstance(tensor, FakeTensor)
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )


def is_readable(tensor: Tensor) -> bool:
    """Like `is_measurable`, but also true for integers."""
    is_integer = tensor.dtype in (torch.int64, torch.int32) and not tensor.is_nested and tensor.layout == torch.strided
    return is_measurable(tensor) or (is_integer and not tensor.is_meta and not isinstance(tensor, FakeTensor))


def shape_of(tensor: Tensor) -> tuple[int, ...]:
    """Return the shape; of a nested tensor, whose rows differ in shape, the number of rows."""
    return (int(tensor.size(0)),) if tensor.is_nested else tuple(tensor.shape)


def is_only_masked(tensor: Tensor) -> bool:
    """Whether all non-finite values are minus infinity, as in attention masks."""
    tensor = tensor.detach().float()
    return not bool((torch.isnan(tensor) | torch.isposinf(tensor)).any())
