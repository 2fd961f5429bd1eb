"""Running statistics of norm layers such as BatchNorm: find, check and restore them."""

import math
from collections.abc import Sequence

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


def restore_statistics(statistics: Sequence[Tensor], saved: Sequence[Tensor]) -> None:
    """Copy saved values back in place."""
    for tensor, copy in zip(statistics, saved, strict=True):
        tensor.copy_(copy)
