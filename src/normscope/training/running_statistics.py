"""Running statistics: what norms such as BatchNorm remember of the batches they saw."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn


def running_statistics(model: nn.Module) -> dict[str, Tensor]:
    """The buffers that belong to a model's state, by name; those that can be computed anew do not.

    >>> from normscope import BatchNorm, RMSNorm
    >>> list(running_statistics(nn.Sequential(RMSNorm(4), BatchNorm(4))))
    ['1.running_mean', '1.running_var', '1.num_batches_tracked']
    """
    lasting = model.state_dict()
    return {name: buffer for name, buffer in model.named_buffers() if name in lasting}


def are_finite(statistics: Sequence[Tensor]) -> bool:
    """Whether all of these numbers are, in a single pass."""
    floats = [tensor for tensor in statistics if tensor.is_floating_point() and tensor.numel()]
    return not floats or bool(torch.stack(torch._foreach_norm(floats, math.inf)).isfinite().all())


def put_back(statistics: Sequence[Tensor], before: Sequence[Tensor]) -> None:
    """Let them be what they were when a copy of them was taken."""
    for tensor, copy in zip(statistics, before, strict=True):
        tensor.copy_(copy)
