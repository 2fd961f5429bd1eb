"""Row norms as a differentiable operation on the fused kernels: LayerNorm, RMSNorm, and both after an addition.

`fused/row_norm.py` has the kernels. The input and the mean of each row are saved for the backward pass.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor

from normscope.ops.buffers import (
    any_requires_grad,
    constant_vector,
    empty_float64,
    match_parameter,
    needs_differentiable_backward,
    parameter_or,
    to_contiguous_float32,
)
from normscope.ops.norm import reference
from normscope.ops.norm.reference import Affine, NormStatistics
from normscope.ops.norm.statistic import Statistic
from normscope.ops.operation import KernelError, Operation, Tensors, fast_apply, run_kernel
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
    x, branch, weight, bias, mask = tensors
    wide, d, has_bias = to_contiguous_float32(x), config.d, bias is not None
    weight, bias = parameter_or(1.0, weight, d), parameter_or(0.0, bias, d)
    branch, mask = branch if branch is None else branch.contiguous(), mask if mask is None else mask.contiguous()
    y, total, means = _run_forward(config, wide, branch, weight, bias, mask, has_bias)
    return y if wide.dtype == x.dtype else y.to(x.dtype), total, means


def _run_forward(
    config: RowNormConfig, x: Tensor, branch: Tensor | None, weight: Tensor, bias: Tensor, mask: Tensor | None,
    has_bias: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    (d, eps, centered), numbers = config, x.numel()
    y, total, rows = torch.empty_like(x), None if branch is None else torch.empty_like(x), numbers // d
    means = empty_float64(rows) if centered else None
    arrays = (
        x.data_ptr(), 0 if branch is None else branch.data_ptr(), 0 if total is None else total.data_ptr(),
        weight.data_ptr(), bias.data_ptr(), 0 if mask is None else mask.data_ptr(), y.data_ptr(),
        0 if means is None else means.data_ptr(),
    )  # fmt: skip
    options = rows, d, eps, centered, mask is not None, branch is not None, has_bias
    run_kernel("row_norm", "forward", thread_pool_for(numbers), arrays, options)
    return y, total, means


def _backward(
    config: RowNormConfig, grads: Tensors, saved: Tensors, needed: list[bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradients of x (and of the branch), weight and bias, given those of the result and of x + branch."""
    given, weight, bias, mask, means = saved
    dy, residual_grad = grads if len(grads) == 2 else (grads[0], None)
    if dy is None:  # the result was not used
        return residual_grad, None, None
    x, dy = to_contiguous_float32(given), to_contiguous_float32(dy)
    residual_grad = None if residual_grad is None else to_contiguous_float32(residual_grad)
    wide_weight, mask = parameter_or(1.0, weight, config.d), None if mask is None else mask.contiguous()
    dx, dweight, dbias = _run_backward(config, x, wide_weight, mask, means, dy, residual_grad, needed)
    dx = dx if given.dtype == torch.float32 else dx.to(given.dtype)
    return dx, match_parameter(dweight, weight), match_parameter(dbias, bias)


def _run_backward(
    config: RowNormConfig, x: Tensor, weight: Tensor, mask: Tensor | None, means: Tensor | None, dy: Tensor,
    residual_grad: Tensor | None, needed: Sequence[bool],
) -> tuple[Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    (d, eps, centered), (_, needs_weight, needs_bias, *_), numbers = config, needed, x.numel()
    dx, rows = torch.empty_like(x), numbers // d
    dweight = torch.empty_like(weight) if needs_weight else None
    dbias = torch.empty_like(weight) if needs_bias else None
    kernel, blocks = "backward", 16 if rows > 480 else -(-rows // 32)  # by the rows alone, for deterministic results
    workspace_size = 2 * blocks * d if needs_weight or needs_bias else 0
    if d >= LONG_ROW:
        kernel, workspace_size = "long_rows_backward", 4 * rows + 1
    workspace = empty_float64(workspace_size)
    arrays = (
        x.data_ptr(), weight.data_ptr(), 0 if mask is None else mask.data_ptr(),
        0 if means is None else means.data_ptr(), dy.data_ptr(),
        0 if residual_grad is None else residual_grad.data_ptr(), dx.data_ptr(), workspace.data_ptr(),
    )  # fmt: skip
    results = 0 if dweight is None else dweight.data_ptr(), 0 if dbias is None else dbias.data_ptr()
    options = blocks, rows, d, eps, centered, needs_weight, needs_bias, mask is not None, residual_grad is not None
    run_kernel("row_norm_backward", kernel, thread_pool_for(numbers), arrays, results, options)
    return dx, dweight, dbias


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


def _fallback(
    config: RowNormConfig, x: Tensor, branch: Tensor | None, *others: Any
) -> tuple[Tensor, Tensor | None, Tensor | None]:
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


class _PlainRowNorm(torch.autograd.Function):
    """`ROW_NORM` of plain tensors without a branch and a mask: the same kernels and bits, with less Python around them.

    The Python of the general call takes as long as the kernels at 768 x 128, and six times as long at 64 x 64.
    """

    @staticmethod
    def forward(ctx: Any, config: RowNormConfig, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        y, means = _compute_plain(config, x, weight, bias)
        ctx.save_for_backward(x, weight, bias, means)
        ctx.config = config
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight, bias, means), needed, config = ctx.saved_tensors, ctx.needs_input_grad[1:], ctx.config
        if dy.dtype is torch.float32 and dy.is_contiguous() and not needs_differentiable_backward(dy):
            ones = constant_vector(1.0, config.d) if weight is None else weight
            with suppress(KernelError):
                return None, *_run_backward(config, x, ones, None, means, dy, None, needed)
        needed = needed[0], False, *needed[1:], False
        dx, _, dweight, dbias, _ = ROW_NORM.gradients(config, (dy, None), (x, weight, bias, None, means), needed)
        return None, dx, dweight, dbias


def _compute_plain(
    config: RowNormConfig, x: Tensor, weight: Tensor | None, bias: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    ones = constant_vector(1.0, config.d) if weight is None else weight
    zeros = constant_vector(0.0, config.d) if bias is None else bias
    try:
        y, _, means = _run_forward(config, x, None, ones, zeros, None, bias is not None)
    except KernelError:
        with torch.no_grad():
            y, _, means = _fallback(config, x, None, weight, bias, None)
    return y, means


_apply_plain = fast_apply(_PlainRowNorm)


def normalize_plain_rows(config: RowNormConfig, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Normalize the rows of a tensor that is plain, with plain parameters (see `kernel_mode.is_plain`)."""
    if any_requires_grad(x, weight, bias):
        y: Tensor = _apply_plain(config, x, weight, bias)
        return y
    return _compute_plain(config, x, weight, bias)[0]
