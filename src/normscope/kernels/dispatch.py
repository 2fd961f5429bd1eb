"""Which form computes a norm: a fused kernel where one fits, else the readable steps. Both give the same numbers.

The kernels take float32, bfloat16 and float16 in the memory of the CPU; everything else, other devices among them,
takes the readable steps in plain torch. `normscope.kernels.switch` says when kernels may run at all.
"""

from types import ModuleType

from torch import Tensor

from normscope.kernels import normalize as steps
from normscope.kernels import switch
from normscope.kernels.normalize import Affine, Statistic
from normscope.scope import Plan

_rows: ModuleType | None = None


def normalize(
    x: Tensor, plan: Plan, *, statistic: Statistic, eps: float, affine: Affine, mask: Tensor | None
) -> Tensor:
    """Normalize by the input's own moments, in the fastest form there is for it."""
    form = switch.form_for(x, affine.weight, affine.bias, mask)
    if form != "steps" and over_rows(x, plan, affine, mask):
        rows = _row_kernels()
        if rows is not None:
            real = None if mask is None else steps.lay_mask(mask, plan).flatten(len(plan.kept))[..., 0].contiguous()
            setting = rows.Setting(plan.count, eps, statistic == "standardise")
            y: Tensor = rows.normalize(x, affine.weight, affine.bias, real, setting, form)
            return y
    y, _ = steps.by_batch(x, plan, statistic=statistic, eps=eps, affine=affine, mask=mask)
    return y


def over_rows(x: Tensor, plan: Plan, affine: Affine, mask: Tensor | None) -> bool:
    """Whether each statistic is over one stretch of contiguous memory, with a gain that lies along it."""
    kept = len(plan.kept)
    return (
        plan.kept == tuple(range(kept))
        and x.dtype in switch.KINDS
        and x.is_contiguous()
        and x.numel() > 0
        and (affine.weight is None or _lies_along(affine.weight, affine.along, plan))
        and (affine.bias is None or _lies_along(affine.bias, affine.along, plan))
        and (mask is None or (plan.shape == plan.split_shape and mask.dim() <= kept))
    )


def _lies_along(parameter: Tensor, along: tuple[int, ...], plan: Plan) -> bool:
    kept = len(plan.kept)
    return (
        along[kept:] == plan.split_shape[kept:]
        and parameter.numel() == plan.count
        and parameter.dtype in switch.KINDS
        and parameter.is_contiguous()
    )


def _row_kernels() -> ModuleType | None:
    """The row kernels, which bring numba; None where that fails."""
    global _rows
    if _rows is None:
        try:
            from normscope.kernels import rows
        except Exception as error:  # whatever numba's reason may be, the steps do without it
            switch.give_up(error)
            return None
        _rows = rows
    return _rows
