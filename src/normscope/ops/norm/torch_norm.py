"""Norms by PyTorch's own functions: F.layer_norm, F.rms_norm, F.group_norm, F.instance_norm and F.batch_norm.

Each function here returns None if torch has no function that means the same: a mask, RMS over channels, a weight along
other axes, one value per statistic.
"""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses import FakeTensor

from normscope.ops import registry
from normscope.ops.buffers import any_requires_grad
from normscope.ops.norm.memory_layout import ChannelLayout, channel_layout, is_row_norm
from normscope.ops.norm.reference import Affine, NormStatistics
from normscope.ops.norm.statistic import RMS, STANDARDIZE, Statistic
from normscope.ops.symbolic_sizes import statically_known_true
from normscope.scope import Plan


def normalize(x: Tensor, plan: Plan, *, statistic: Statistic, eps: float, affine: Affine) -> Tensor | None:
    """Normalize with statistics computed from the input."""
    if is_row_norm(plan.split_shape, plan.roles, affine.broadcast_shape):
        return _normalize_rows(x, plan, statistic, eps, affine)
    layout = _layout(x, plan, affine)
    if layout is None or statistic != STANDARDIZE or not statically_known_true(plan.count > 1):
        return None
    weight, bias = _flat(affine.weight), _flat(affine.bias)
    if layout.across_batch or layout.memory_format == "channels_last":
        view = _channel_view(x, layout)
        y = None if view is None else F.batch_norm(view, None, None, weight, bias, training=True, eps=eps)
    elif layout.group_size == 1:
        y = F.instance_norm(_split(x, layout), None, None, weight, bias, use_input_stats=True, eps=eps)
    else:
        y = F.group_norm(_split(x, layout), layout.channels // layout.group_size, weight, bias, eps)
    return None if y is None else _like(y, x)


def _normalize_rows(x: Tensor, plan: Plan, statistic: Statistic, eps: float, affine: Affine) -> Tensor | None:
    rows = x if x.dim() and statically_known_true(x.shape[-1] == plan.count) else x.reshape(-1, plan.count)
    weight, bias, shape = _flat(affine.weight), _flat(affine.bias), (plan.count,)
    if statistic == STANDARDIZE:
        return _like(layer_norm(rows, shape, weight, bias, eps), x)
    if statistic == RMS and bias is None:
        return _like(F.rms_norm(rows, shape, weight, eps), x)
    return None


def layer_norm(x: Tensor, row: tuple[int, ...], weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Run F.layer_norm, or native_group_norm for small CPU inputs that need gradients of weight or bias.

    With one group, and each value of a row as a channel, its gradients do not depend on the number of threads.
    """
    is_real = x.is_cpu and not isinstance(x, FakeTensor)  # whose group norm is stricter about shapes
    if is_real and registry.is_tiny(x.numel(), row) and any_requires_grad(weight, bias):
        y: Tensor = torch.native_group_norm(x, weight, bias, x.numel() // row[0], row[0], 1, 1, eps)[0]
        return y
    return torch.layer_norm(x, row, weight, bias, eps)


def normalize_with_statistics(
    x: Tensor, plan: Plan, *, statistic: Statistic, eps: float, affine: Affine
) -> tuple[Tensor, NormStatistics] | None:
    """Normalize by F.batch_norm, and return the statistics too, for layers that track running statistics."""
    layout = _layout(x, plan, affine)
    view = None if layout is None else _channel_view(x, layout)
    if layout is None or view is None or statistic != STANDARDIZE or not statically_known_true(plan.count > 1):
        return None
    mean, variance = x.new_zeros(layout.groups), x.new_zeros(layout.groups)
    weight, bias = _repeated(affine.weight, layout), _repeated(affine.bias, layout)
    # With a momentum of 1, torch stores the mean and the unbiased variance of the batch.
    y = F.batch_norm(view, mean, variance, weight, bias, training=True, momentum=1.0, eps=eps)
    each = plan.statistics_broadcast_shape()
    square = variance * ((plan.count - 1) / plan.count)
    statistics = (t.reshape(each) for t in (mean, square, torch.full_like(square, plan.count)))
    return _like(y, x), NormStatistics(*statistics)


def normalize_with_running_statistics(
    x: Tensor, plan: Plan, mean: Tensor, second_moment: Tensor, *, eps: float, affine: Affine
) -> Tensor | None:
    """Normalize by F.batch_norm with given statistics, one for each group of values."""
    layout = _layout(x, plan, affine)
    view = None if layout is None else _channel_view(x, layout)
    if layout is None or view is None:
        return None
    weight, bias = _repeated(affine.weight, layout), _repeated(affine.bias, layout)
    return _like(F.batch_norm(view, mean.to(x.dtype), second_moment.to(x.dtype), weight, bias, eps=eps), x)


def _layout(x: Tensor, plan: Plan, affine: Affine) -> ChannelLayout | None:
    order = tuple(range(len(plan.split_shape)))
    return channel_layout(plan.split_shape, plan.roles, affine.broadcast_shape, order)


def _split(x: Tensor, layout: ChannelLayout) -> Tensor:
    """View as (batch, channels, ...); the tensor itself if it already is, so that its memory format is kept."""
    if (
        x.dim() > 2
        and statically_known_true(x.shape[0] == layout.batch)
        and statically_known_true(x.shape[1] == layout.channels)
    ):
        return x
    return x.reshape(layout.batch, layout.channels, layout.spatial)


def _channel_view(x: Tensor, layout: ChannelLayout) -> Tensor | None:
    """View so that each group of values is a channel of F.batch_norm; None if a group has several channels."""
    if not statically_known_true(layout.group_size == 1):
        return None
    if layout.memory_format == "channels_last":
        return x.reshape(layout.spatial, layout.channels) if statically_known_true(layout.batch == 1) else None
    return _split(x, layout) if layout.across_batch else x.reshape(1, layout.groups, layout.spatial)


def _flat(parameter: Tensor | None) -> Tensor | None:
    return None if parameter is None else parameter.flatten()


def _repeated(parameter: Tensor | None, layout: ChannelLayout) -> Tensor | None:
    """Return the weight or the bias of each group of values: those of an instance norm are shared by all samples."""
    if parameter is None or layout.across_batch or layout.memory_format == "channels_last":
        return _flat(parameter)
    return parameter.flatten().repeat(layout.batch)


def _like(y: Tensor, x: Tensor) -> Tensor:
    # Under autocast, torch's norms return float32.
    return y if y.shape == x.shape and y.dtype == x.dtype else y.reshape(x.shape).to(x.dtype)
