"""Channel norms as a differentiable operation on the fused kernels: BatchNorm, InstanceNorm, GroupNorm.

`fused/channel_norm.py` has the kernels for contiguous tensors, `fused/channels_last_norm.py` those for channels-last
ones. The input and the mean of each group are saved for the backward pass.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from normscope.ops.buffers import (
    addresses,
    empty_float64,
    match_layout,
    match_parameter,
    parameter_or,
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
    """A `ChannelLayout`, and the arguments of the norm."""

    memory_format: str
    batch: int
    channels: int
    spatial: int
    group_size: int
    across_batch: bool
    eps: float
    centered: bool
    channels_last: bool
    """Whether the tensor itself, rather than its layout, is channels-last."""

    @property
    def layout(self) -> ChannelLayout:
        return ChannelLayout(*self[:6])

    @property
    def blocks(self) -> int:
        """The number of blocks for summation. It depends on the size alone, so results are deterministic."""
        return max(1, min(64, self.spatial // 32))


def _forward(config: ChannelNormConfig, *tensors: Any) -> tuple[Tensor, ...]:
    """Return the result, and the mean, second moment and count of each group."""
    given, weight, bias, mask, means, squares = tensors
    (x, wide_weight, mask), groups = _kernel_inputs(config, given, weight, mask), config.layout.groups
    wide_bias, y = parameter_or(0.0, bias, config.channels), torch.empty_like(x)
    results = [empty_float64(groups) if t is None else t.double().clone() for t in (means, squares)]
    counts, workspace = empty_float64(groups), None
    if config.memory_format == "channels_last":
        counts = empty_float64(config.batch * config.blocks)
        workspace = empty_float64((3 + 2 * config.blocks) * config.batch * config.channels)
    _run(config, "forward", (x, wide_weight, wide_bias, mask, y, *results, counts, workspace), mask, squares)
    if config.memory_format == "channels_last":
        counts = (counts[: config.batch] * config.group_size).repeat_interleave(groups // config.batch)
    return y if x.dtype == given.dtype else y.to(given.dtype), *results, counts


def _backward(
    config: ChannelNormConfig, grads: Tensors, saved: Tensors, needed: list[bool]
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return the gradients of input, weight and bias."""
    given, weight, bias, mask, means, squares = saved
    x, wide_weight, mask = _kernel_inputs(config, given, weight, mask)
    dx, dweight, dbias = torch.empty_like(x), torch.empty_like(wide_weight), torch.empty_like(wide_weight)
    counts, numbers = None, 2 * config.batch
    if config.memory_format == "channels_last":
        counts = empty_float64(config.batch).fill_(config.spatial)
        if mask is not None:
            counts = mask.reshape(config.batch, config.spatial).sum(1).double()
        numbers = (1 + 3 * config.blocks) * config.batch + 2
    workspace = empty_float64(numbers * config.channels)
    arrays = x, wide_weight, mask, match_layout(grads[0], x), dx, dweight, dbias, means, squares, counts, workspace
    _run(config, "backward", arrays, mask, squares)
    dx = dx if x.dtype == given.dtype else dx.to(given.dtype)
    weight, bias = weight if needed[1] else None, bias if needed[2] else None
    return dx, match_parameter(dweight, weight), match_parameter(dbias, bias)


def _run(config: ChannelNormConfig, kernel: str, arrays: Tensors, mask: Tensor | None, squares: Tensor | None) -> None:
    flags = config.eps, config.centered, mask is not None, squares is not None
    module = "channel_norm" if config.memory_format == "contiguous" else "channels_last_norm"
    options = (*config[1:6], config.blocks, *flags)
    run_kernel(module, kernel, thread_pool_for(arrays[0].numel()), addresses(*arrays), options)


def _kernel_inputs(
    config: ChannelNormConfig, x: Tensor, weight: Tensor | None, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    mask = None if mask is None else mask.contiguous()
    return _to_memory_format(config, x), parameter_or(1.0, weight, config.channels), mask


def _to_memory_format(config: ChannelNormConfig, x: Tensor) -> Tensor:
    """Convert to float32 in the memory format of the config: a graph may be called with other strides."""
    if not config.channels_last:
        return to_contiguous_float32(x)
    return x.float().contiguous(memory_format=_last_format(x))


def _last_format(x: Tensor) -> torch.memory_format:
    return torch.channels_last if x.dim() == 4 else torch.channels_last_3d


def _normalize(config: ChannelNormConfig, *tensors: Any) -> tuple[Tensor, ...]:
    """Same as `_forward`, by the reference implementation."""
    (x, weight, bias, mask, means, squares), layout = tensors, config.layout
    x = x.contiguous(memory_format=_last_format(x) if config.channels_last else torch.contiguous_format)
    groups, flat = layout.channels // layout.group_size, x.as_strided((x.numel(),), (1,))
    if config.memory_format == "contiguous":
        work = flat.reshape(layout.batch, groups, layout.group_size, layout.spatial)
    else:
        work = flat.reshape(layout.batch, layout.spatial, groups, layout.group_size)
    plan = _SCOPES[layout.memory_format, layout.across_batch].bind(work.shape)
    affine = Affine(weight, bias, plan.broadcast_shape(("g", "c")))
    mask = None if mask is None else mask.reshape(plan.broadcast_shape(("n", "s")))
    options: dict[str, Any] = {"eps": config.eps, "affine": affine, "mask": mask}
    if squares is None:
        statistic = Statistic.of_kernel(centered=config.centered)
        y, statistics = reference.normalize_with_batch_statistics(work, plan, statistic=statistic, **options)
        squares = statistics.second_moment.flatten()
        counts = statistics.count.expand_as(statistics.second_moment).flatten()
        means = torch.zeros_like(squares) if statistics.mean is None else statistics.mean.flatten()
    else:
        given = (t.reshape(plan.statistics_broadcast_shape()) for t in (means, squares))
        y = reference.normalize_with_running_statistics(work, plan, *given, **options)
        counts = torch.zeros_like(squares)
    y = y.reshape(-1).as_strided(x.shape, x.stride())
    # Copies, in the kernels' dtype: an operator must not return its inputs.
    return y, *(statistic.detach().to(torch.float64, copy=True) for statistic in (means, squares, counts))


def _reference(config: ChannelNormConfig, *saved: Any) -> tuple[Tensor, ...]:
    return _normalize(config, *saved)[:1]


def _shapes(config: ChannelNormConfig, x: Tensor, *others: object) -> tuple[Tensor, ...]:
    groups = config.layout.groups
    return _empty_like(config, x), *(x.new_empty(groups, dtype=torch.float64) for _ in range(3))


def _empty_like(config: ChannelNormConfig, x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=_last_format(x) if config.channels_last else torch.contiguous_format)


def _grad_shapes(config: ChannelNormConfig, grads: Tensors, saved: Tensors) -> list[Tensor | None]:
    x, *parameters = saved[:3]
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
