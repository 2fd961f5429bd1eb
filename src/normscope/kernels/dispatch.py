"""Which form computes a norm: a fused kernel where one fits, else the readable steps. Both give the same numbers.

| what                                     | form                                                      |
|------------------------------------------|-----------------------------------------------------------|
| float32, bfloat16, float16 on the CPU:   |                                                           |
|   statistics over contiguous rows        | `rows`: LayerNorm, RMSNorm                                |
|   channels, contiguous or channels-last  | `channels`: BatchNorm, InstanceNorm, GroupNorm            |
|   any other scope or memory              | the steps                                                 |
| float64, other devices, `sync=True`      | the steps, in plain torch                                 |

`normscope.kernels.switch` says when kernels may run at all, and `normscope.kernels.layout` what lies where in memory.
"""

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from normscope.kernels import layout, switch
from normscope.kernels import normalize as steps
from normscope.kernels.normalize import Affine, Moments, Statistic
from normscope.scope import Plan


def normalize(
    x: Tensor, plan: Plan, *, statistic: Statistic, eps: float, affine: Affine, mask: Tensor | None
) -> Tensor:
    """Normalize by the input's own moments, in the fastest form there is for it."""
    form = _form(x, affine, mask)
    over_rows = form != "steps" and x.is_contiguous() and _row_mask_fits(mask, plan)
    if over_rows and layout.is_over_rows(plan.split_shape, plan.kept, affine.along):
        kernels = _row_kernels()
        if kernels is not None:
            real = None if mask is None else steps.lay_mask(mask, plan).flatten(len(plan.kept))[..., 0].contiguous()
            setting = kernels.Setting(plan.count, eps, statistic == "standardise")
            y: Tensor = kernels.normalize(x, affine.weight, affine.bias, real, setting, form)
            return y
    y, _ = normalize_and_measure(x, plan, statistic=statistic, eps=eps, affine=affine, mask=mask)
    return y


def add_and_normalize(
    x: Tensor, branch: Tensor, plan: Plan, *, statistic: Statistic, eps: float, affine: Affine
) -> tuple[Tensor, Tensor]:
    """x + branch, and that normalized: in one pass over memory where the sum is normalized over rows."""
    form = _form(x, affine, branch) if x.shape == branch.shape and x.dtype == branch.dtype == torch.float32 else "steps"
    if form != "steps" and x.is_contiguous() and branch.is_contiguous():
        kernels = _row_kernels() if layout.is_over_rows(plan.split_shape, plan.kept, affine.along) else None
        if kernels is not None:
            setting = kernels.Setting(plan.count, eps, statistic == "standardise")
            total, y = kernels.add_and_normalize(x, branch, affine.weight, affine.bias, setting, form)
            return total, y
    total = x + branch
    return total, normalize(total, plan, statistic=statistic, eps=eps, affine=affine, mask=None)


def normalize_and_measure(
    x: Tensor, plan: Plan, *, statistic: Statistic, eps: float, affine: Affine, mask: Tensor | None
) -> tuple[Tensor, Moments]:
    """The same, with the moments beside the result, for a layer that remembers them."""
    centred = statistic == "standardise"
    found = _by_channels(x, plan, affine, mask, None, eps, centred)
    if found is None:
        return steps.by_batch(x, plan, statistic=statistic, eps=eps, affine=affine, mask=mask)
    each = tuple(size if i in plan.kept else 1 for i, size in enumerate(plan.split_shape))
    moments = Moments(
        mean=found.means.reshape(each) if centred else None,
        square=found.squares.reshape(each),
        count=found.counts.reshape(each),
    )
    y: Tensor = found.y
    return y, moments


def normalize_by_memory(
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
    each = tuple(size if i in plan.kept else 1 for i, size in enumerate(plan.split_shape))
    squares = square.detach().expand(each).flatten()
    means = torch.zeros_like(squares) if mean is None else mean.detach().expand(each).flatten()
    found = _by_channels(x, plan, affine, mask, (means, squares), eps, mean is not None)
    if found is None:
        return steps.by_memory(x, plan, mean, square, eps=eps, affine=affine, mask=mask)
    y: Tensor = found.y
    return y


def _form(x: Tensor, affine: Affine, other: Tensor | None) -> switch.Form:
    if x.dtype not in switch.KINDS or not x.numel():
        return "steps"
    for parameter in (affine.weight, affine.bias):
        if parameter is not None and (parameter.dtype not in switch.KINDS or not parameter.is_contiguous()):
            return "steps"
    return switch.form_for(x, affine.weight, affine.bias, other)


def _row_mask_fits(mask: Tensor | None, plan: Plan) -> bool:
    """Whether the mask tells rows apart and nothing inside of them."""
    return mask is None or (plan.shape == plan.split_shape and mask.dim() <= len(plan.kept))


def _by_channels(
    x: Tensor,
    plan: Plan,
    affine: Affine,
    mask: Tensor | None,
    known: tuple[Tensor, Tensor] | None,
    eps: float,
    centred: bool,
) -> Any:
    """What the kernels for channels give; None if they do not fit."""
    form = _form(x, affine, mask)
    order = None if form == "steps" else layout.in_memory(x, plan)
    if order is None:
        return None
    at = layout.channels_of(plan.split_shape, plan.kept, affine.along, order)
    real = None if mask is None or at is None else _mask_of_places(mask, plan, order, at)
    if at is None or (mask is not None and real is None):
        return None
    kernels = _channel_kernels()
    if kernels is None:
        return None
    return kernels.normalize(x, affine.weight, affine.bias, real, known, at, eps, centred, form)


def _mask_of_places(mask: Tensor, plan: Plan, order: tuple[int, ...], at: layout.Channels) -> Tensor | None:
    """A flag for each sample and place; None if the mask may tell channels apart."""
    real = steps.lay_mask(mask, plan)
    for channel in layout.channel_dimensions(plan.split_shape, order, at):
        if real.stride(channel) != 0:
            return None
        real = real.narrow(channel, 0, 1)
    return real.permute(order).reshape(at.outer, at.inner).contiguous()


_loaded: dict[str, ModuleType] = {}


def _row_kernels() -> ModuleType | None:
    """The kernels for rows, which bring numba; None where that fails."""
    if "rows" not in _loaded:
        try:
            from normscope.kernels import rows
        except Exception as error:  # whatever numba's reason may be, the steps do without it
            switch.give_up(error)
            return None
        _loaded["rows"] = rows
    return _loaded["rows"]


def _channel_kernels() -> ModuleType | None:
    if "channels" not in _loaded:
        try:
            from normscope.kernels import channels
        except Exception as error:
            switch.give_up(error)
            return None
        _loaded["channels"] = channels
    return _loaded["channels"]
