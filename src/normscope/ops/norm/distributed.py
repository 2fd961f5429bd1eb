"""Differentiable sums over the ranks of torch.distributed."""

from collections.abc import Iterator
from contextlib import contextmanager
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


_is_alone = False


@contextmanager
def computing_alone() -> Iterator[None]:
    """Context manager in which `sync` has no effect: the other ranks don't compute, and a sum would wait for them."""
    global _is_alone
    before, _is_alone = _is_alone, True
    try:
        yield
    finally:
        _is_alone = before


def is_shared(sync: bool) -> bool:
    """Return whether `sync` is on and there are other ranks."""
    return sync and not _is_alone and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def sum_over_ranks(x: Tensor, sync: bool) -> Tensor:
    """Sum over all ranks; return `x` itself if sync is off or there is only one rank."""
    return cast(Tensor, _SumOverRanks.apply(x)) if is_shared(sync) else x
