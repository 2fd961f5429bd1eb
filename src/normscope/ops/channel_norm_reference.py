"""Reference implementation of channel norms, on tensors in the memory layout that the fused kernels take."""

import torch
from torch import Tensor

from normscope.ops import norm_reference
from normscope.ops.memory_layout import ChannelLayout
from normscope.ops.norm_reference import Affine
from normscope.ops.statistic import Statistic
from normscope.scope import Scope

# The dimensions of `_view` in memory order: n batch, s spatial positions, g groups of c channels.
_SCOPES = {
    ("contiguous", False): Scope.parse("n g [c s]"),
    ("contiguous", True): Scope.parse("[n] g [c s]"),
    ("channels_last", False): Scope.parse("n [s] g [c]"),
}


def _view(x: Tensor, layout: ChannelLayout) -> Tensor:
    """View the tensor in memory order, with the dimensions of `_SCOPES`."""
    groups = layout.channels // layout.group_size
    flat = x.as_strided((x.numel(),), (1,))
    if layout.memory_format == "contiguous":
        return flat.reshape(layout.batch, groups, layout.group_size, layout.spatial)
    return flat.reshape(layout.batch, layout.spatial, groups, layout.group_size)


def normalize_channels_reference(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mask: Tensor | None,
    means: Tensor | None,
    squares: Tensor | None,
    layout: ChannelLayout,
    eps: float,
    centered: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the result and the means, second moments and counts. Given `squares`, normalize with given statistics."""
    work = _view(x, layout)
    plan = _SCOPES[layout.memory_format, layout.across_batch].bind(work.shape)
    affine = Affine(weight, bias, plan.broadcast_shape(("g", "c")))
    mask = None if mask is None else mask.reshape(plan.broadcast_shape(("n", "s")))
    if squares is None:
        y, statistics = norm_reference.normalize_with_batch_statistics(
            work, plan, statistic=Statistic.which(centers=centered), eps=eps, affine=affine, mask=mask
        )
        squares = statistics.second_moment.flatten()
        counts = statistics.count.expand_as(statistics.second_moment).flatten()
        means = torch.zeros_like(squares) if statistics.mean is None else statistics.mean.flatten()
    else:
        assert means is not None
        each = plan.statistics_broadcast_shape()
        y = norm_reference.normalize_with_running_statistics(
            work, plan, means.reshape(each), squares.reshape(each), eps=eps, affine=affine, mask=mask
        )
        counts = torch.zeros_like(squares)
    y = y.reshape(-1).as_strided(x.shape, x.stride())
    return y, means.detach(), squares.detach(), counts
