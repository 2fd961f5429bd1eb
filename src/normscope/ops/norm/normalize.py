"""Normalize by the implementation that `normscope.ops.registry` chooses. Results are the same.

Fused norms are over contiguous rows (`row_norm`), or over channels, contiguous or channels-last (`channel_norm`); any
other scope runs the reference.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from normscope.ops import registry
from normscope.ops.buffers import any_requires_grad
from normscope.ops.kernel_mode import Backend
from normscope.ops.norm import memory_layout, reference, torch_norm
from normscope.ops.norm.channel_norm import CHANNEL_NORM, ChannelNormConfig
from normscope.ops.norm.reference import Affine, NormStatistics
from normscope.ops.norm.row_norm import ROW_NORM, RowNormConfig, normalize_plain_rows
from normscope.ops.norm.statistic import Statistic
from normscope.ops.symbolic_sizes import statically_known_true
from normscope.scope import Plan

_LONG_PLANE = 1024
"""A longer row without a weight is normalized as a channel: all of it is scaled by one number."""


class CachedDispatch(NamedTuple):
    """The cached dispatch of `normalize` for plain tensors (`kernel_mode.is_plain`) of one shape."""

    row: tuple[int, ...]
    """The sizes of the last dimensions, if the norm is over them."""
    layout: memory_layout.ChannelLayout | None
    """The channels, if kernels run over them."""
    size: int
    """The number of values per statistic."""
    centered: bool
    small: bool
    """Whether torch may normalize the rows, and whether it does so even if weight or bias get a gradient."""
    tiny: bool

    def __call__(self, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
        row, layout, size, centered, small, tiny = self
        if small:  # as `registry.uses_torch_layer_norm`
            if not any_requires_grad(weight, bias):
                return torch.layer_norm(x, row, weight, bias, eps, False)
            if tiny:
                return torch_norm.layer_norm(x, row, weight, bias, eps)
        y: Tensor
        if layout is None:
            return normalize_plain_rows(RowNormConfig(size, eps, centered), x, weight, bias)
        if not row and centered and registry.uses_torch_channel_norm(x, layout, weight, bias):
            batch, channels, spatial, group_size = layout[1:5]
            if layout.across_batch:
                view = x.reshape(batch, channels, spatial)
                return torch.batch_norm(view, weight, bias, None, None, True, 0.0, eps, False).reshape(x.shape)
            sizes = batch, channels, spatial, channels // group_size
            return torch.native_group_norm(x, weight, bias, *sizes, eps)[0]
        config = ChannelNormConfig(*layout, eps, centered, channels_last=False)
        y = CHANNEL_NORM("fused", config, x, weight, bias, None, None, None)[0]
        return y


def dispatch_for_shape(
    plan: Plan, statistic: Statistic, broadcast_shape: tuple[int, ...], parameter_shape: tuple[int, ...] | None
) -> CachedDispatch | None:
    """Return the short call for a shape; None if the norm of such tensors is neither over rows nor over channels."""
    if not statistic.has_kernels or not plan.shape or 0 in plan.shape:
        return None
    row: tuple[int, ...] = ()
    numbers, small = math.prod(plan.shape), False
    if memory_layout.is_row_norm(plan.split_shape, plan.roles, broadcast_shape):
        while math.prod(row) < plan.count or not row:
            row = plan.shape[-1 - len(row) :]
        if math.prod(row) != plan.count or (parameter_shape is not None and row != parameter_shape):
            return None
        small = statistic.centers and numbers < registry.SMALL
        if parameter_shape is not None or plan.count <= _LONG_PLANE:
            return CachedDispatch(row, None, plan.count, statistic.centers, small, registry.is_tiny(numbers, row))
    order = tuple(range(len(plan.split_shape)))
    layout = memory_layout.channel_layout(plan.split_shape, plan.roles, broadcast_shape, order)
    if layout is None or (parameter_shape is not None and len(parameter_shape) != 1):
        return None
    return CachedDispatch(row, layout, plan.count, statistic.centers, small, tiny=False)


def normalize(
    x: Tensor, plan: Plan, *, statistic: Statistic, eps: float, affine: Affine, mask: Tensor | None
) -> Tensor:
    """Normalize with statistics computed from the input."""
    backend = registry.choose_norm(x, plan, statistic, affine, mask)
    found: Tensor | None
    if backend == "torch":
        found = torch_norm.normalize(x, plan, statistic=statistic, eps=eps, affine=affine)
    elif backend == "reference":
        found = None
    else:
        found = _normalize_rows(x, plan, affine, mask, eps, statistic.centers, backend)
        if found is None:
            channels = _normalize_channels(x, plan, affine, mask, None, eps, statistic.centers, backend)
            found = None if channels is None else channels[0]
    if found is not None:
        return found
    return reference.normalize_with_batch_statistics(x, plan, statistic=statistic, eps=eps, affine=affine, mask=mask)[0]


def add_and_normalize(
    x: Tensor, branch: Tensor, plan: Plan, *, statistic: Statistic, eps: float, affine: Affine
) -> tuple[Tensor, Tensor]:
    """Return `x + branch` and its norm, in one pass over memory for row norms."""
    backend = registry.choose_add_norm(x, branch, plan, statistic, affine)
    if backend == "fused" or backend == "operator":
        config = RowNormConfig(plan.count, eps, statistic.centers)
        y, total, *_ = ROW_NORM(backend, config, x, branch, affine.weight, affine.bias, None)
        return total if x.requires_grad or branch.requires_grad else total.detach(), y
    total = x + branch
    return total, normalize(total, plan, statistic=statistic, eps=eps, affine=affine, mask=None)


def normalize_with_statistics(
    x: Tensor, plan: Plan, *, statistic: Statistic, eps: float, affine: Affine, mask: Tensor | None
) -> tuple[Tensor, NormStatistics]:
    """Normalize like `normalize`, and return the statistics too, for layers that track running statistics."""
    backend = registry.choose_tracked_norm(x, plan, statistic, affine, mask)
    if backend == "torch":
        found = torch_norm.normalize_with_statistics(x, plan, statistic=statistic, eps=eps, affine=affine)
        if found is not None:
            return found
    elif backend != "reference":
        channels = _normalize_channels(x, plan, affine, mask, None, eps, statistic.centers, backend)
        if channels is not None:
            y, means, squares, counts = channels
            each = plan.statistics_broadcast_shape()
            mean = means.reshape(each) if statistic.centers else None
            return y, NormStatistics(mean, squares.reshape(each), counts.reshape(each))
    return reference.normalize_with_batch_statistics(x, plan, statistic=statistic, eps=eps, affine=affine, mask=mask)


def normalize_with_running_statistics(
    x: Tensor,
    plan: Plan,
    mean: Tensor | None,
    second_moment: Tensor,
    *,
    statistic: Statistic,
    eps: float,
    affine: Affine,
    mask: Tensor | None,
) -> Tensor:
    """Normalize with given statistics, whose shape broadcasts over the plan's axes."""
    backend = registry.choose_tracked_norm(x, plan, statistic, affine, mask)
    if backend != "reference":
        each = plan.statistics_broadcast_shape()
        squares = second_moment.detach().expand(each).flatten()
        means = torch.zeros_like(squares) if mean is None else mean.detach().expand(each).flatten()
        if backend == "torch":
            found = torch_norm.normalize_with_running_statistics(x, plan, means, squares, eps=eps, affine=affine)
            if found is not None:
                return found
        else:
            channels = _normalize_channels(x, plan, affine, mask, (means, squares), eps, mean is not None, backend)
            if channels is not None:
                return channels[0]
    return reference.normalize_with_running_statistics(x, plan, mean, second_moment, eps=eps, affine=affine, mask=mask)


def _normalize_rows(
    x: Tensor, plan: Plan, affine: Affine, mask: Tensor | None, eps: float, centered: bool, backend: Backend
) -> Tensor | None:
    """Run the row kernels. Returns None if they do not apply, or if the rows are better treated as channels."""
    if not registry.is_row_norm(plan, affine) or _is_single_plane(plan, affine):
        return None
    is_contiguous = x.is_contiguous()
    if not is_contiguous and memory_layout.memory_order(x, plan) is not None:
        return None
    row_mask = None
    if mask is not None:
        if not _is_row_mask(mask, plan):
            return None
        row_mask = reference.expand_mask(mask, plan).flatten(len(plan.kept))[..., 0].contiguous()
    rows = x if is_contiguous else x.contiguous()  # torch's layers copy here too
    config = RowNormConfig(plan.count, eps, centered)
    y: Tensor = ROW_NORM(backend, config, rows, None, affine.weight, affine.bias, row_mask)[0]
    return y if is_contiguous else _to_memory_order(x, y)


def _is_single_plane(plan: Plan, affine: Affine) -> bool:
    """Return whether rows are long and have no weight: each is scaled by one number, as a channel is."""
    return affine.weight is None and affine.bias is None and statically_known_true(plan.count > _LONG_PLANE)


def _is_row_mask(mask: Tensor, plan: Plan) -> bool:
    """Return whether the mask is constant within each row."""
    whole = len(plan.shape) == len(plan.split_shape)
    return whole and "rk" not in plan.roles and mask.dim() <= len(plan.kept)


def _normalize_channels(
    x: Tensor,
    plan: Plan,
    affine: Affine,
    mask: Tensor | None,
    running: tuple[Tensor, Tensor] | None,
    eps: float,
    centered: bool,
    backend: Backend,
) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """Run the channel kernels. Returns the result, means, second moments and counts, or None if they do not apply."""
    order, original = memory_layout.memory_order(x, plan), x
    if order is None:
        x, order = x.contiguous(), tuple(range(len(plan.split_shape)))
    layout = memory_layout.channel_layout(plan.split_shape, plan.roles, affine.broadcast_shape, order)
    position_mask = None if mask is None or layout is None else _position_mask(mask, plan, affine, order, layout)
    if layout is None or (mask is not None and position_mask is None):
        return None
    config = ChannelNormConfig(*layout, eps, centered, channels_last=order[-1] != len(order) - 1)
    given = running or (None, None)
    y, means, squares, counts = CHANNEL_NORM(backend, config, x, affine.weight, affine.bias, position_mask, *given)
    return y if x is original else _to_memory_order(original, y), means, squares, counts


def _to_memory_order(x: Tensor, y: Tensor) -> Tensor:
    """Copy the result to the memory order of the input, if the input is dense."""
    like = torch.empty_like(x)
    return y if like.stride() == y.stride() else like.copy_(y)


def _position_mask(
    mask: Tensor, plan: Plan, affine: Affine, order: tuple[int, ...], layout: memory_layout.ChannelLayout
) -> Tensor | None:
    """Return the mask as (batch, spatial), or None if it may vary along channels."""
    expanded = reference.expand_mask(mask, plan)
    for channel in memory_layout.channel_dimensions(plan.split_shape, plan.roles, affine.broadcast_shape, order):
        if expanded.stride(channel) != 0:
            return None
        expanded = expanded.narrow(channel, 0, 1)
    return expanded.permute(order).reshape(layout.batch, layout.spatial).contiguous()
