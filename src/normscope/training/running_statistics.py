"""Running statistics of norm layers such as BatchNorm: find, check and restore them."""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn


def running_statistics(model: nn.Module) -> dict[str, Tensor]:
    """The persistent buffers of a model, by name.

    >>> from normscope import BatchNorm, RMSNorm
    >>> list(running_statistics(nn.Sequential(RMSNorm(4), BatchNorm(4))))
    ['1.running_mean', '1.running_var', '1.num_batches_tracked']
    """
    state = model.state_dict()
    return {name: buffer for name, buffer in model.named_buffers() if name in state}


def all_finite(statistics: Sequence[Tensor]) -> bool:
    """Whether all values are finite, checked in one fused pass."""
    floats = [tensor for tensor in statistics if tensor.is_floating_point() and tensor.numel()]
    return not floats or bool(torch.stack(torch._foreach_norm(floats, math.inf)).isfinite().all())


@contextmanager
def preserve_tensors(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Copy the values of tensors back at the end of the block."""
    saved = [(tensor, tensor.detach().clone()) for tensor in tensors]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, values in saved:
                tensor.copy_(values)
