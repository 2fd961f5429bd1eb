"""The readable form of the norms of channels, on tensors as the kernels see them: dense, in the order of memory."""

import torch
from torch import Tensor

from normscope.ops import norm_reference
from normscope.ops.memory_layout import ChannelLayout
from normscope.ops.norm_reference import Affine
from normscope.scope import Scope

# The dimensions of `_view`, in the order of memory: samples, places, and channels in groups that share a statistic.
_SCOPES = {
    ("segments", False): Scope.parse("n g [c s]"),
    ("segments", True): Scope.parse("[n] g [c s]"),
    ("columns", False): Scope.parse("n [s] g [c]"),
}


def _view(x: Tensor, at: ChannelLayout) -> Tensor:
    """The numbers in the order of memory, as the dimensions of `_SCOPES`."""
    groups = at.channels // at.together
    flat = x.as_strided((x.numel(),), (1,))
    if at.kind == "segments":
        return flat.reshape(at.outer, groups, at.together, at.inner)
    return flat.reshape(at.outer, at.inner, groups, at.together)


def normalize_channels_reference(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    real: Tensor | None,
    means: Tensor | None,
    squares: Tensor | None,
    at: ChannelLayout,
    eps: float,
    centred: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    work = _view(x, at)
    plan = _SCOPES[at.kind, at.shared].bind(work.shape)
    affine = Affine(weight, bias, plan.along(("g", "c")))
    mask = None if real is None else real.reshape(plan.along(("n", "s")))
    if squares is None:
        statistic: norm_reference.Statistic = "standardize" if centred else "rms"
        y, moments = norm_reference.normalize_with_batch_statistics(
            work, plan, statistic=statistic, eps=eps, affine=affine, mask=mask
        )
        squares, counts = moments.square.flatten(), moments.count.expand_as(moments.square).flatten()
        means = torch.zeros_like(squares) if moments.mean is None else moments.mean.flatten()
    else:
        assert means is not None
        each = plan.statistics_broadcast_shape()
        y = norm_reference.normalize_with_running_statistics(
            work, plan, means.reshape(each), squares.reshape(each), eps=eps, affine=affine, mask=mask
        )
        counts = torch.zeros_like(squares)
    y = y.reshape(-1).as_strided(x.shape, x.stride())
    return y, means.detach(), squares.detach(), counts
