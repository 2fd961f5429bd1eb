"""Row norms as a differentiable operation on the fused kernels: LayerNorm, RMSNorm, and both after an addition.

`fused/row_norm.py` has the kernels. The input and the mean of each row are saved for the backward pass.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from normscope.ops.buffers import (
    empty_float64,
    match_parameter,
    parameter_or,
    to_contiguous_float32,
)
from normscope.ops.norm import reference
from normscope.ops.norm.reference import Affine, NormStatistics
from normscope.ops.norm.statistic import Statistic
from normscope.ops.operation import Operation, Tensors, run_kernel
from normscope.ops.threads import thread_pool_for
from normscope.scope import Scope

_ROWS = Scope.parse("r [d]")

LONG_ROW = 8192
"""The row length from which the backward pass is `long_rows_backward`: rows too long for the cache."""


class RowNormConfig(NamedTuple):
    d: int
    """The row length."""
    eps: float
    centered: bool


def _forward(config: RowNormConfig, *tensors: Any) -> tuple[Tensor | None, ...]:
    """Return the result, x + branch (None without a branch), and the row means (None if not centered)."""
    (x, branch, weight, bias, mask), (d, eps, centered) = tensors, config
    wide = to_contiguous_float32(x)
    wide_weight, wide_bias = parameter_or(1.0, weight, d), parameter_or(0.0, bias, d)
    branch, mask = branch if branch is None else branch.contiguous(), mask if mask is None else mask.contiguous()
    total = None if branch is None else torch.empty_like(wide)
    y, numbers = torch.empty_like(wide), wide.numel()
    rows = numbers // d
    means = empty_float64(rows) if centered else None
    arrays = (
        wide.data_ptr(), 0 if branch is None else branch.data_ptr(), 0 if total is None else total.data_ptr(),
        wide_weight.data_ptr(), wide_bias.data_ptr(), 0 if mask is None else mask.data_ptr(), y.data_ptr(),
        0 if means is None else means.data_ptr(),
    )  # fmt: skip
    options = rows, d, eps, centered, mask is not None, branch is not None, bias is not None
    run_kernel("row_norm", "forward", thread_pool_for(numbers), arrays, options)
    return y if wide.dtype == x.dtype else y.to(x.dtype), total, means


def _backward(
    config: RowNormConfig, grads: Tensors, saved: Tensors, needed: list[bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradients of x (and of the branch), weight and bias, given those of the result and of x + branch."""
    (given, weight, bias, mask, means), (d, eps, centered) = saved, config
    dy, residual_grad = grads if len(grads) == 2 else (grads[0], None)
    if dy is None:  # the result was not used
        return residual_grad, None, None
    x, wide_weight, dy = to_contiguous_float32(given), parameter_or(1.0, weight, d), to_contiguous_float32(dy)
    residual_grad = None if residual_grad is None else to_contiguous_float32(residual_grad)
    mask = None if mask is None else mask.contiguous()
    dx, total = torch.empty_like(x), x.numel()
    rows, pool = total // d, thread_pool_for(total)
    dweight = torch.empty_like(wide_weight) if needed[1] else None
    dbias = torch.empty_like(wide_weight) if needed[2] else None
    kernel, blocks = "backward", 16 if rows > 480 else -(-rows // 32)  # by the rows alone, for deterministic results
    numbers = 2 * blocks * d if needed[1] or needed[2] else 0
    if d >= LONG_ROW:
        kernel, numbers = "long_rows_backward", 4 * rows + 1
    workspace = empty_float64(numbers)
    arrays = (
        x.data_ptr(), wide_weight.data_ptr(), 0 if mask is None else mask.data_ptr(),
        0 if means is None else means.data_ptr(), dy.data_ptr(),
        0 if residual_grad is None else residual_grad.data_ptr(), dx.data_ptr(), workspace.data_ptr(),
    )  # fmt: skip
    results = 0 if dweight is None else dweight.data_ptr(), 0 if dbias is None else dbias.data_ptr()
    options = blocks, rows, d, eps, centered, needed[1], needed[2], mask is not None, residual_grad is not None
    run_kernel("row_norm_backward", kernel, pool, arrays, results, options)
    dx = dx if given.dtype == torch.float32 else dx.to(given.dtype)
    return dx, match_parameter(dweight, weight), match_parameter(dbias, bias)


def _normalize(config: RowNormConfig, x: Tensor, *others: Any) -> tuple[Tensor, NormStatistics]:
    (weight, bias, mask), rows = others, x.reshape(-1, config.d)
    y, statistics = reference.normalize_with_batch_statistics(
        rows,
        _ROWS.bind(rows.shape),
        statistic=Statistic.of_kernel(centered=config.centered),
        eps=config.eps,
        affine=Affine(weight, bias, (1, config.d)),
        mask=None if mask is None else mask.reshape(-1),
    )
    return y.reshape(x.shape), statistics


def _reference(config: RowNormConfig, x: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    return _normalize(config, x, *others[:-1])[0], x


def _fallback(config: RowNormConfig, x: Tensor, branch: Tensor | None, *others: Any) -> tuple[Tensor | None, ...]:
    total = None if branch is None else x + branch
    y, statistics = _normalize(config, x if total is None else total, *others)
    return y, total, None if statistics.mean is None else statistics.mean.flatten()


def _shapes(config: RowNormConfig, x: Tensor, branch: Tensor | None, *others: object) -> tuple[Tensor | None, ...]:
    means = x.new_empty(x.numel() // config.d, dtype=torch.float64) if config.centered else None
    return x.new_empty(x.shape), None if branch is None else x.new_empty(x.shape), means


def _saves(tensors: Tensors, outputs: Tensors) -> Tensors:
    x, branch, weight, bias, mask = tensors
    return x if branch is None else outputs[1], weight, bias, mask, outputs[2]


ROW_NORM = Operation(
    "norm_rows",
    tensors="x branch? weight? bias? mask?",
    config=RowNormConfig,
    forward=_forward,
    backward=_backward,
    reference=_reference,
    fallback=_fallback,
    shapes=_shapes,
    saves=_saves,
    gradient_of=(0, 0, 1, 2),
    returned=2,
    outputs=3,
)
"""The norm of the rows of x, or of x + branch (both float32, of the same shape).

The weight and the bias are along the row, and the mask has one value per row. Returns the norm, the sum and the means.
"""
