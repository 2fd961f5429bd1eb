"""Choose the implementation of a norm: a fused kernel if one applies, otherwise the reference. Results are the same.

| input                                    | implementation                                            |
|------------------------------------------|-----------------------------------------------------------|
| float32, bfloat16, float16 on the CPU:   |                                                           |
|   statistics over contiguous rows        | `row_norm`: LayerNorm, RMSNorm                            |
|   channels, contiguous or channels-last  | `channel_norm`: BatchNorm, InstanceNorm, GroupNorm        |
|   any other scope                        | `norm_reference`                                          |
| float64, other devices, `sync=True`      | `norm_reference`                                          |

`normscope.ops.kernel_mode` decides whether kernels run at all; `normscope.ops.memory_layout` describes memory layouts.
"""

import torch
from torch import Tensor

from normscope.ops import kernel_mode, memory_layout, norm_reference
from normscope.ops.norm_reference import Affine, NormStatistics
from normscope.ops.numba_loader import kernels
from normscope.ops.statistic import Statistic
from normscope.ops.symbolic_sizes import is_known
from normscope.scope import Plan


def normalize(
    x: Tensor, plan: Plan, *, statistic: Statistic, eps: float, affine: Affine, mask: Tensor | None
) -> Tensor:
    """Normalize with statistics computed from the input."""
    backend = _select_backend(x, affine, mask)
    if backend != "reference" and _is_row_norm(plan, affine) and not _is_single_plane(plan, affine):
        is_contiguous = x.is_contiguous()
        has_order = not is_contiguous and memory_layout.memory_order(x, plan) is not None
        if not has_order and (mask is None or _is_row_mask(mask, plan)):
            row_kernels = kernels("rows")
            if row_kernels is not None:
                row_mask = None
                if mask is not None:
                    row_mask = norm_reference.expand_mask(mask, plan).flatten(len(plan.kept))[..., 0].contiguous()
                config = row_kernels.RowNormConfig(plan.count, eps, statistic.centers)
                rows = x if is_contiguous else x.contiguous()  # torch's layers copy here too
                y: Tensor = row_kernels.normalize(rows, affine.weight, affine.bias, row_mask, config, backend)
                return y if is_contiguous else _to_memory_order(x, y)
    found = _normalize_channels(x, plan, affine, mask, None, eps, statistic.centers, backend)
    if found is not None:
        return found[0]
    y, _ = norm_reference.normalize_with_batch_statistics(
        x, plan, statistic=statistic, eps=eps, affine=affine, mask=mask
    )
    return y


def add_and_normalize(
    x: Tensor, branch: Tensor, plan: Plan, *, statistic: Statistic, eps: float, affine: Affine
) -> tuple[Tensor, Tensor]:
    """Return `x + branch` and its norm, in one pass over memory for row norms."""
    backend: kernel_mode.Backend = "reference"
    if x.shape == branch.shape and x.dtype == branch.dtype == torch.float32:
        backend = _select_backend(x, affine, branch)
    if backend != "reference" and x.is_contiguous() and branch.is_contiguous() and _is_row_norm(plan, affine):
        row_kernels = kernels("rows")
        if row_kernels is not None:
            config = row_kernels.RowNormConfig(plan.count, eps, statistic.centers)
            total, y = row_kernels.add_and_normalize(x, branch, affine.weight, affine.bias, config, backend)
            return total, y
    total = x + branch
    return total, normalize(total, plan, statistic=statistic, eps=eps, affine=affine, mask=None)


def normalize_with_statistics(
    x: Tensor, plan: Plan, *, statistic: Statistic, eps: float, affine: Affine, mask: Tensor | None
) -> tuple[Tensor, NormStatistics]:
    """Normalize like `normalize`, and return the statistics too, for layers that track running statistics."""
    centered = statistic.centers
    found = _normalize_channels(x, plan, affine, mask, None, eps, centered, _select_backend(x, affine, mask))
    if found is None:
        return norm_reference.normalize_with_batch_statistics(
            x, plan, statistic=statistic, eps=eps, affine=affine, mask=mask
        )
    y, (means, squares, counts) = found
    each = plan.statistics_broadcast_shape()
    return y, NormStatistics(means.reshape(each) if centered else None, squares.reshape(each), counts.reshape(each))


def normalize_with_running_statistics(
    x: Tensor,
    plan: Plan,
    mean: Tensor | None,
    second_moment: Tensor,
    *,
    eps: float,
    affine: Affine,
    mask: Tensor | None,
) -> Tensor:
    """Normalize with given statistics, whose shape broadcasts over the plan's axes."""
    each = plan.statistics_broadcast_shape()
    second_moments = second_moment.detach().expand(each).flatten()
    means = torch.zeros_like(second_moments) if mean is None else mean.detach().expand(each).flatten()
    found = _normalize_channels(
        x, plan, affine, mask, (means, second_moments), eps, mean is not None, _select_backend(x, affine, mask)
    )
    if found is None:
        return norm_reference.normalize_with_running_statistics(
            x, plan, mean, second_moment, eps=eps, affine=affine, mask=mask
        )
    return found[0]


def _select_backend(x: Tensor, affine: Affine, other: Tensor | None) -> kernel_mode.Backend:
    weight, bias, dtypes = affine.weight, affine.bias, kernel_mode.SUPPORTED_DTYPES
    if (
        x.dtype in dtypes
        and x.numel()
        and (weight is None or (weight.dtype in dtypes and weight.is_contiguous()))
        and (bias is None or (bias.dtype in dtypes and bias.is_contiguous()))
    ):
        return kernel_mode.select_backend(x, weight, bias, other)
    return "reference"


def _is_row_norm(plan: Plan, affine: Affine) -> bool:
    if affine.is_row_norm is not None:
        return affine.is_row_norm
    return memory_layout.is_row_norm(plan.split_shape, plan.roles, affine.broadcast_shape)


def _is_single_plane(plan: Plan, affine: Affine) -> bool:
    """Return whether rows are long and have no gain: each is scaled by one number, as a channel is."""
    return affine.weight is None and affine.bias is None and is_known(plan.count > 1024)


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
    backend: kernel_mode.Backend,
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]] | None:
    """Run the channel kernels. Returns the result and (means, second moments, counts), or None if they do not apply."""
    if backend == "reference":
        return None
    order, original = memory_layout.memory_order(x, plan), x
    if order is None:
        x, order = x.contiguous(), tuple(range(len(plan.split_shape)))
    layout = memory_layout.channel_layout(plan.split_shape, plan.roles, affine.broadcast_shape, order)
    position_mask = None if mask is None or layout is None else _position_mask(mask, plan, affine, order, layout)
    if layout is None or (mask is not None and position_mask is None):
        return None
    channel_kernels = kernels("channels")
    if channel_kernels is None:
        return None
    channels_last = order[-1] != len(order) - 1
    y, statistics = channel_kernels.normalize(
        x, affine.weight, affine.bias, position_mask, running, layout, eps, centered, backend, channels_last
    )
    return y if x is original else _to_memory_order(original, y), statistics


def _to_memory_order(x: Tensor, y: Tensor) -> Tensor:
    """Copy the result to the memory order of the input, if the input is dense."""
    like = torch.empty_like(x)
    return y if like.stride() == y.stride() else like.copy_(y)


def _position_mask(
    mask: Tensor, plan: Plan, affine: Affine, order: tuple[int, ...], layout: memory_layout.ChannelLayout
) -> Tensor | None:
    """Return the mask as (batch, spatial), or None if it may vary along channels."""
    expanded = norm_reference.expand_mask(mask, plan)
    for channel in memory_layout.channel_dimensions(plan.split_shape, plan.roles, affine.broadcast_shape, order):
        if expanded.stride(channel) != 0:
            return None
        expanded = expanded.narrow(channel, 0, 1)
    return expanded.permute(order).reshape(layout.batch, layout.spatial).contiguous()
