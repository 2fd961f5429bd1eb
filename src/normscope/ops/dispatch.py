"""Which form computes a norm: a fused kernel where one fits, else the readable steps. Both give the same numbers.

| what                                     | form                                                      |
|------------------------------------------|-----------------------------------------------------------|
| float32, bfloat16, float16 on the CPU:   |                                                           |
|   statistics over rows                   | `rows`: LayerNorm, RMSNorm                                |
|   channels, contiguous or channels-last  | `channels`: BatchNorm, InstanceNorm, GroupNorm            |
|   any other scope                        | the steps                                                 |
| float64, other devices, `sync=True`      | the steps, in plain torch                                 |

`normscope.ops.kernel_mode` decides whether kernels run at all; `normscope.ops.memory_layout` describes memory layouts.
"""

import torch
from torch import Tensor

from normscope.ops import kernel_mode, memory_layout, norm_reference
from normscope.ops.norm_reference import Affine, NormStatistics, Statistic
from normscope.ops.numba_loader import kernels
from normscope.ops.symbolic_sizes import is_known
from normscope.scope import Plan


def normalize(
    x: Tensor, plan: Plan, *, statistic: Statistic, eps: float, affine: Affine, mask: Tensor | None
) -> Tensor:
    """Normalize by the input's own moments, in the fastest form there is for it."""
    form = _form(x, affine, mask)
    if form != "reference" and _is_over_rows(plan, affine) and not _is_one_segment(plan, affine):
        is_contiguous = x.is_contiguous()
        if (is_contiguous or memory_layout.memory_order(x, plan) is None) and (mask is None or _masks_rows(mask, plan)):
            row_kernels = kernels("rows")
            if row_kernels is not None:
                real = (
                    None
                    if mask is None
                    else norm_reference.expand_mask(mask, plan).flatten(len(plan.kept))[..., 0].contiguous()
                )
                setting = row_kernels.RowNormConfig(plan.count, eps, statistic == "standardize")
                rows = x if is_contiguous else x.contiguous()  # a copy, as torch's own layers make one
                y: Tensor = row_kernels.normalize(rows, affine.weight, affine.bias, real, setting, form)
                return y if is_contiguous else _in_the_order_of(x, y)
    found = _by_channels(x, plan, affine, mask, None, eps, statistic == "standardize", form)
    if found is not None:
        return found[0]
    y, _ = norm_reference.normalize_with_batch_statistics(
        x, plan, statistic=statistic, eps=eps, affine=affine, mask=mask
    )
    return y


def add_and_normalize(
    x: Tensor, branch: Tensor, plan: Plan, *, statistic: Statistic, eps: float, affine: Affine
) -> tuple[Tensor, Tensor]:
    """x + branch, and that normalized: in one pass over memory where the sum is normalized over rows."""
    form = (
        _form(x, affine, branch)
        if x.shape == branch.shape and x.dtype == branch.dtype == torch.float32
        else "reference"
    )
    if form != "reference" and x.is_contiguous() and branch.is_contiguous() and _is_over_rows(plan, affine):
        row_kernels = kernels("rows")
        if row_kernels is not None:
            setting = row_kernels.RowNormConfig(plan.count, eps, statistic == "standardize")
            total, y = row_kernels.add_and_normalize(x, branch, affine.weight, affine.bias, setting, form)
            return total, y
    total = x + branch
    return total, normalize(total, plan, statistic=statistic, eps=eps, affine=affine, mask=None)


def normalize_with_statistics(
    x: Tensor, plan: Plan, *, statistic: Statistic, eps: float, affine: Affine, mask: Tensor | None
) -> tuple[Tensor, NormStatistics]:
    """The same, with the moments beside the result, for a layer that remembers them."""
    centred = statistic == "standardize"
    found = _by_channels(x, plan, affine, mask, None, eps, centred, _form(x, affine, mask))
    if found is None:
        return norm_reference.normalize_with_batch_statistics(
            x, plan, statistic=statistic, eps=eps, affine=affine, mask=mask
        )
    y, (means, squares, counts) = found
    each = plan.statistics_broadcast_shape()
    return y, NormStatistics(means.reshape(each) if centred else None, squares.reshape(each), counts.reshape(each))


def normalize_with_running_statistics(
    x: Tensor,
    plan: Plan,
    mean: Tensor | None,
    square: Tensor,
    *,
    eps: float,
    affine: Affine,
    mask: Tensor | None,
) -> Tensor:
    """Normalize by moments that were remembered, laid out to broadcast over the plan's axes."""
    each = plan.statistics_broadcast_shape()
    squares = square.detach().expand(each).flatten()
    means = torch.zeros_like(squares) if mean is None else mean.detach().expand(each).flatten()
    found = _by_channels(x, plan, affine, mask, (means, squares), eps, mean is not None, _form(x, affine, mask))
    if found is None:
        return norm_reference.normalize_with_running_statistics(
            x, plan, mean, square, eps=eps, affine=affine, mask=mask
        )
    return found[0]


def _form(x: Tensor, affine: Affine, other: Tensor | None) -> kernel_mode.Backend:
    weight, bias, kinds = affine.weight, affine.bias, kernel_mode.SUPPORTED_DTYPES
    if (
        x.dtype in kinds
        and x.numel()
        and (weight is None or (weight.dtype in kinds and weight.is_contiguous()))
        and (bias is None or (bias.dtype in kinds and bias.is_contiguous()))
    ):
        return kernel_mode.select_backend(x, weight, bias, other)
    return "reference"


def _is_over_rows(plan: Plan, affine: Affine) -> bool:
    known = affine.is_row_norm
    return memory_layout.is_row_norm(plan.split_shape, plan.roles, affine.along) if known is None else known


def _is_one_segment(plan: Plan, affine: Affine) -> bool:
    """Whether a row is long and has no gain: all of it is then multiplied by one number, as a channel is."""
    return affine.weight is None and affine.bias is None and is_known(plan.count > 1024)


def _masks_rows(mask: Tensor, plan: Plan) -> bool:
    """Whether the mask tells rows apart and nothing inside of them."""
    whole = len(plan.shape) == len(plan.split_shape)
    return whole and "rk" not in plan.roles and mask.dim() <= len(plan.kept)


def _by_channels(
    x: Tensor,
    plan: Plan,
    affine: Affine,
    mask: Tensor | None,
    known: tuple[Tensor, Tensor] | None,
    eps: float,
    centred: bool,
    form: kernel_mode.Backend,
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]] | None:
    """The result of the kernels for channels, and the means, squares and counts; None if they do not fit."""
    if form == "reference":
        return None
    order, given = memory_layout.memory_order(x, plan), x
    if order is None:
        x, order = x.contiguous(), tuple(range(len(plan.split_shape)))
    at = memory_layout.channel_layout(plan.split_shape, plan.roles, affine.along, order)
    real = None if mask is None or at is None else _mask_of_places(mask, plan, affine, order, at)
    if at is None or (mask is not None and real is None):
        return None
    channel_kernels = kernels("channels")
    if channel_kernels is None:
        return None
    channels_last = order[-1] != len(order) - 1
    y, measured = channel_kernels.normalize(
        x, affine.weight, affine.bias, real, known, at, eps, centred, form, channels_last
    )
    return y if x is given else _in_the_order_of(given, y), measured


def _in_the_order_of(x: Tensor, y: Tensor) -> Tensor:
    """The result in the order of memory that the input has, as long as that is dense."""
    like = torch.empty_like(x)
    return y if like.stride() == y.stride() else like.copy_(y)


def _mask_of_places(
    mask: Tensor, plan: Plan, affine: Affine, order: tuple[int, ...], at: memory_layout.ChannelLayout
) -> Tensor | None:
    """A flag for each sample and place; None if the mask may tell channels apart."""
    real = norm_reference.expand_mask(mask, plan)
    for channel in memory_layout.channel_dimensions(plan.split_shape, plan.roles, affine.along, order):
        if real.stride(channel) != 0:
            return None
        real = real.narrow(channel, 0, 1)
    return real.permute(order).reshape(at.outer, at.inner).contiguous()
