"""Differentiable sums over the ranks of torch.distributed."""

from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor


class _SumOverRanks(torch.autograd.Function):
    """y = sum of x over the ranks. Each y depends on the x of every rank, so the gradient is a sum too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return cast(Tensor, _SumOverRanks.apply(grads[0]))


def is_shared(sync: bool) -> bool:
    """Return whether `sync` is on and there are other ranks."""
    return sync and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def sum_over_ranks(x: Tensor, sync: bool) -> Tensor:
    """Sum over all ranks; return `x` itself if sync is off or there is only one rank."""
    return cast(Tensor, _SumOverRanks.apply(x)) if is_shared(sync) else x
