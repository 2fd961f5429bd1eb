"""Sums over all the processes of a distributed run, that gradients flow through."""

from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor


class _SumOverRanks(torch.autograd.Function):
    """y = sum of x over the ranks. Every rank's y depends on every rank's x, so the gradient is a sum as well."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return cast(Tensor, _SumOverRanks.apply(grads[0]))


def is_shared(sync: bool) -> bool:
    """Whether there are other processes to share statistics with."""
    return sync and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def sum_over_ranks(x: Tensor, sync: bool) -> Tensor:
    """The sum over all ranks; `x` itself where nothing is to be synchronised or there is only one process."""
    return cast(Tensor, _SumOverRanks.apply(x)) if is_shared(sync) else x
