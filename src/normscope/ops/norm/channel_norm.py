"""Channel norms as a differentiable operation on the fused kernels: BatchNorm, InstanceNorm, GroupNorm.

`fused/channel_norm.py` has the kernels for contiguous tensors, `fused/channels_last_norm.py` those for channels-last
ones. The input and the mean of each group are saved for the backward pass.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from normscope.ops.buffers import (
    address,
    constant_vector,
    empty_float32,
    empty_float64,
    match_layout,
    match_parameter,
    to_contiguous_float32,
)
from normscope.ops.norm import reference
from normscope.ops.norm.memory_layout import ChannelLayout
from normscope.ops.norm.reference import Affine
from normscope.ops.norm.statistic import Statistic
from normscope.ops.operation import Operation, Tensors, run_kernel
from normscope.ops.threads import thread_pool_for
from normscope.scope import Scope

# The dimensions of `_view` in memory order: n batch, s spatial positions, g groups of c channels.
_SCOPES = {
    ("contiguous", False): Scope.parse("n g [c s]"),
    ("contiguous", True): Scope.parse("[n] g [c s]"),
    ("channels_last", False): Scope.parse("n [s] g [c]"),
}


class ChannelNormConfig(NamedTuple):
    """A `ChannelLayout`, with the memory format as a flag, and the arguments of the norm."""

    spatial_last: bool
    batch: int
    channels: int
    spatial: int
    group_size: int
    across_batch: bool
    eps: float
    centered: bool
    channels_last: bool
    """Whether the tensor itself, rather than its layout, is channels-last."""

    @classmethod
    def of(cls, layout: ChannelLayout, eps: float, centered: bool, channels_last: bool) -> "ChannelNormConfig":
        return cls(layout.memory_format == "contiguous", *layout[1:], eps, centered, channels_last)

    @property
    def layout(self) -> ChannelLayout:
        return ChannelLayout("contiguous" if self.spatial_last else "channels_last", *self[1:6])

    @property
    def blocks(self) -> int:
        """The number of blocks for summation. It depends on the size alone, so results are deterministic."""
        return max(1, min(64, self.spatial // 32))

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes that the kernels of the memory format take."""
        if self.spatial_last:
            layout = self.layout
            planes = layout.planes_per_group
            return layout.groups, planes, self.channels, self.spatial, self.group_size, self.across_batch
        return self.batch, self.blocks, self.spatial, self.channels, self.group_size


def _forward(
    config: ChannelNormConfig,
    given: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mask: Tensor | None,
    means: Tensor | None,
    squares: Tensor | None,
) -> tuple[Tensor, ...]:
    """Return the result, and the mean, second moment and count of each group."""
    layout, x, mask = config.layout, _to_memory_format(config, given), None if mask is None else mask.contiguous()
    gain = constant_vector(1.0, layout.channels) if weight is None else to_contiguous_float32(weight)
    shift = constant_vector(0.0, layout.channels) if bias is None else to_contiguous_float32(bias)
    y, pool = torch.empty_like(x), thread_pool_for(x.numel())
    found_means, found_squares = (
        empty_float64(layout.groups) if t is None else t.double().clone() for t in (means, squares)
    )
    counts = empty_float64(layout.groups if config.spatial_last else config.batch * config.blocks)
    arrays = [*map(address, (x, gain, shift, mask, y, found_means, found_squares, counts))]
    flags = config.eps, config.centered, mask is not None, squares is not None
    if config.spatial_last:
        run_kernel("channel_norm", "forward", pool, *arrays, *config.sizes, *flags)
    else:
        workspace = empty_float64((3 + 2 * config.blocks) * config.batch * config.channels)
        run_kernel("channels_last_norm", "forward", pool, *arrays, workspace.data_ptr(), *config.sizes, *flags)
        counts = (counts[: config.batch] * config.group_size).repeat_interleave(layout.groups // config.batch)
    return y if x.dtype == given.dtype else y.to(given.dtype), found_means, found_squares, counts


def _backward(
    config: ChannelNormConfig, grads: Tensors, saved: Tensors, needed: list[bool]
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return the gradients of input, gain and bias."""
    given, weight, bias, mask, means, squares = saved
    g = grads[0]
    assert given is not None
    assert g is not None
    x, mask = _to_memory_format(config, given), None if mask is None else mask.contiguous()
    gain = constant_vector(1.0, config.channels) if weight is None else to_contiguous_float32(weight)
    dx, pool, dy = torch.empty_like(x), thread_pool_for(x.numel()), match_layout(g, x)
    dweight, dbias = empty_float32(config.channels), empty_float32(config.channels)
    arrays = [*map(address, (x, gain, mask, dy, dx, dweight, dbias, means, squares))]
    flags = config.eps, config.centered, mask is not None, squares is not None
    if config.spatial_last:
        sums = empty_float64(2 * config.batch * config.channels)
        run_kernel("channel_norm", "backward", pool, *arrays, sums.data_ptr(), *config.sizes, *flags)
    else:
        counts = empty_float64(config.batch).fill_(config.spatial)
        if mask is not None:
            counts = mask.reshape(config.batch, config.spatial).sum(1).double()
        workspace = empty_float64(((1 + 3 * config.blocks) * config.batch + 2) * config.channels)
        buffers = counts.data_ptr(), workspace.data_ptr()
        run_kernel("channels_last_norm", "backward", pool, *arrays, *buffers, *config.sizes, *flags)
    dx = dx if x.dtype == given.dtype else dx.to(given.dtype)
    weight, bias = weight if needed[1] else None, bias if needed[2] else None
    return dx, match_parameter(dweight, weight), match_parameter(dbias, bias)


def _to_memory_format(config: ChannelNormConfig, x: Tensor) -> Tensor:
    """Convert to float32 in the memory format of the config: a graph may be called with other strides."""
    if not config.channels_last:
        return to_contiguous_float32(x)
    return x.float().contiguous(memory_format=_last_format(x))


def _last_format(x: Tensor) -> torch.memory_format:
    return torch.channels_last if x.dim() == 4 else torch.channels_last_3d


def _normalize(
    config: ChannelNormConfig,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mask: Tensor | None,
    means: Tensor | None,
    squares: Tensor | None,
) -> tuple[Tensor, ...]:
    """Same as `_forward`, by the reference implementation."""
    layout = config.layout
    x = x.contiguous(memory_format=_last_format(x) if config.channels_last else torch.contiguous_format)
    groups, flat = layout.channels // layout.group_size, x.as_strided((x.numel(),), (1,))
    sizes = (
        (groups, layout.group_size, layout.spatial)
        if config.spatial_last
        else (layout.spatial, groups, layout.group_size)
    )
    work = flat.reshape(layout.batch, *sizes)
    plan = _SCOPES[layout.memory_format, layout.across_batch].bind(work.shape)
    affine = Affine(weight, bias, plan.broadcast_shape(("g", "c")))
    mask = None if mask is None else mask.reshape(plan.broadcast_shape(("n", "s")))
    if squares is None:
        y, statistics = reference.normalize_with_batch_statistics(
            work,
            plan,
            statistic=Statistic.of_kernel(centered=config.centered),
            eps=config.eps,
            affine=affine,
            mask=mask,
        )
        squares = statistics.second_moment.flatten()
        counts = statistics.count.expand_as(statistics.second_moment).flatten()
        means = torch.zeros_like(squares) if statistics.mean is None else statistics.mean.flatten()
    else:
        assert means is not None
        each = plan.statistics_broadcast_shape()
        y = reference.normalize_with_running_statistics(
            work, plan, means.reshape(each), squares.reshape(each), eps=config.eps, affine=affine, mask=mask
        )
        counts = torch.zeros_like(squares)
    y = y.reshape(-1).as_strided(x.shape, x.stride())
    # Copies, in the kernels' dtype: an operator must not return its inputs.
    return y, *(statistic.detach().to(torch.float64, copy=True) for statistic in (means, squares, counts))


def _reference(config: ChannelNormConfig, *saved: Tensor | None) -> tuple[Tensor, ...]:
    x, weight, bias, mask, means, squares = saved
    assert x is not None
    return _normalize(config, x, weight, bias, mask, None if squares is None else means, squares)[:1]


def _shapes(config: ChannelNormConfig, x: Tensor, *others: object) -> tuple[Tensor, ...]:
    groups = config.layout.groups
    return _empty_like(config, x), *(x.new_empty(groups, dtype=torch.float64) for _ in range(3))


def _empty_like(config: ChannelNormConfig, x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=_last_format(x) if config.channels_last else torch.contiguous_format)


def _grad_shapes(config: ChannelNormConfig, grads: Tensors, saved: Tensors) -> list[Tensor | None]:
    x, *parameters = saved[:3]
    assert x is not None
    return [_empty_like(config, x), *(None if p is None else p.new_empty(p.shape) for p in parameters)]


def _saves(tensors: Tensors, outputs: Tensors) -> Tensors:
    *inputs, _, squares = tensors
    return *inputs, outputs[1], None if squares is None else outputs[2]


CHANNEL_NORM = Operation(
    "norm_channels",
    tensors="x weight? bias? mask? means? squares?",
    config=ChannelNormConfig,
    forward=_forward,
    backward=_backward,
    reference=_reference,
    fallback=_normalize,
    shapes=_shapes,
    saves=_saves,
    grad_shapes=_grad_shapes,
    gradient_of=(0, 1, 2),
    outputs=4,
)
"""The norm of channels, with a mask of (batch, spatial). Returns the norm, means, second moments and counts.

Given `means` and `squares`, one for each group, it normalizes with them.
"""
