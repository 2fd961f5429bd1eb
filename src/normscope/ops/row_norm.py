"""Row norms as differentiable functions on the fused kernels: LayerNorm, RMSNorm.

`fused/row_norm.py` has the kernels. This file chooses the number of threads, saves tensors for the backward pass and
defines it. Double backward, and everything if numba fails, uses the reference implementation.
"""

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from normscope.ops import norm_reference
from normscope.ops.buffers import (
    address,
    all_contiguous,
    any_requires_grad,
    constant_vector,
    empty_float32,
    empty_float64,
    fast_apply,
    needs_differentiable_backward,
    reference_gradients,
    to_contiguous_float32,
    to_float32,
)
from normscope.ops.fused import long_row_norm as long_rows
from normscope.ops.fused import row_norm as loops
from normscope.ops.fused import row_norm_backward as backward_kernels
from normscope.ops.kernel_mode import Backend, as_operator, disable_kernels
from normscope.ops.norm_reference import Affine, NormStatistics
from normscope.ops.statistic import Statistic
from normscope.ops.threads import thread_pool_for
from normscope.scope import Scope

_ROWS = Scope.parse("r [d]")


class RowNormConfig(NamedTuple):
    d: int
    """The row length."""
    eps: float
    centered: bool


def normalize(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mask: Tensor | None, config: RowNormConfig, backend: Backend
) -> Tensor:
    """Normalize contiguous rows, with gain and bias along the row and a mask of rows."""
    if backend == "operator":
        _, y, _ = _operator(x, None, weight, bias, mask, *config)
    elif any_requires_grad(x, weight, bias):
        y = _apply(x, None, weight, bias, mask, config)
    else:
        _, y, _ = _forward(x, None, weight, bias, mask, *config)
    result: Tensor = y
    return result


def add_and_normalize(
    x: Tensor, branch: Tensor, weight: Tensor | None, bias: Tensor | None, config: RowNormConfig, backend: Backend
) -> tuple[Tensor, Tensor]:
    """Return `x + branch` (both float32, of the same shape) and its norm over rows."""
    if backend == "operator":
        total, y, _ = _operator(x, branch, weight, bias, None, *config)
    elif any_requires_grad(x, branch, weight, bias):
        total, y = _apply(x, branch, weight, bias, None, config)
    else:
        total, y, _ = _forward(x, branch, weight, bias, None, *config)
    assert total is not None
    return total, y


def _forward(
    x: Tensor,
    branch: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    mask: Tensor | None,
    d: int,
    eps: float,
    centered: bool,
) -> tuple[Tensor | None, Tensor, Tensor | None]:
    """Return x + branch (None without a branch), the result, and the row means (None if not centered)."""
    wide, gain, shift = to_float32(x), _gain(weight, d), constant_vector(0.0, d) if bias is None else to_float32(bias)
    total = None if branch is None else torch.empty_like(wide)
    y, rows = torch.empty_like(wide), wide.numel() // d
    means = empty_float64(rows) if centered else None
    try:
        loops.forward(
            *thread_pool_for(wide.numel()), wide.data_ptr(), address(branch), address(total), gain.data_ptr(),
            shift.data_ptr(), address(mask), y.data_ptr(), address(means), rows, d, eps, centered, mask is not None,
            branch is not None, bias is not None,
        )  # fmt: skip
        return total, y if wide is x else y.to(x.dtype), means
    except Exception as error:
        disable_kernels(error)
    if branch is not None:
        total = x = x + branch
    y, statistics = _reference(x, weight, bias, mask, RowNormConfig(d, eps, centered))
    return total, y, None if statistics.mean is None else statistics.mean.flatten()


def _backward(
    residual_grad: Tensor | None,
    g: Tensor,
    x: Tensor,
    weight: Tensor | None,
    mask: Tensor | None,
    means: Tensor | None,
    d: int,
    eps: float,
    centered: bool,
    needs_weight_grad: bool,
    needs_bias_grad: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return the gradients of the input and, if needed, of gain and bias.

    `residual_grad` is the gradient of x + branch that bypasses the norm.
    """
    wide, gain, g = to_float32(x), _gain(weight, d), to_contiguous_float32(g)
    residual_grad = None if residual_grad is None else to_contiguous_float32(residual_grad)
    dx, rows, pool = torch.empty_like(wide), wide.numel() // d, thread_pool_for(wide.numel())
    dweight, dbias = empty_float32(d) if needs_weight_grad else None, empty_float32(d) if needs_bias_grad else None
    arrays = (
        wide.data_ptr(), gain.data_ptr(), address(mask), address(means), g.data_ptr(), address(residual_grad),
        dx.data_ptr(), address(dweight), address(dbias),
    )  # fmt: skip
    flags = centered, needs_weight_grad, needs_bias_grad, mask is not None, residual_grad is not None
    try:
        if d >= long_rows.LONG:
            workspace, sums = (empty_float64(size) for size in long_rows.workspace_sizes(pool.threads, rows))
            long_rows.backward(*pool, *arrays, workspace.data_ptr(), sums.data_ptr(), rows, d, eps, *flags)
        else:
            blocks = min(16, -(-rows // 32))  # depends on the rows alone, for deterministic results
            sums = empty_float64((2 * blocks + 1) * d if needs_weight_grad or needs_bias_grad else 0)
            backward_kernels.backward(*pool, *arrays, sums.data_ptr(), blocks, rows, d, eps, *flags)
        return dx if wide is x else dx.to(x.dtype), dweight, dbias
    except Exception as error:
        disable_kernels(error)
    leaf = None if weight is None else weight.detach().requires_grad_()
    shift = empty_float32(d).zero_().requires_grad_() if needs_bias_grad else None
    found = _reference_gradients(
        residual_grad, g, x.detach().requires_grad_(), leaf, shift, mask, RowNormConfig(d, eps, centered)
    )
    assert found[0] is not None
    return found[0], found[1], found[2]


class _RowNormFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        branch: Tensor | None,
        weight: Tensor | None,
        bias: Tensor | None,
        mask: Tensor | None,
        config: RowNormConfig,
    ) -> Any:
        total, y, means = _forward(x, branch, weight, bias, mask, *config)
        ctx.save_for_backward(x if branch is None else total, weight, bias, mask, means)
        ctx.config = config
        ctx.set_materialize_grads(False)
        if branch is not None and not (x.requires_grad or branch.requires_grad):  # only the gain requires grad
            ctx.mark_non_differentiable(total)
        return y if branch is None else (total, y)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        residual_grad, g = grads if len(grads) == 2 else (None, grads[0])
        x, weight, bias, mask, means = ctx.saved_tensors
        if g is None:  # the result was not used
            return residual_grad, residual_grad, None, None, None, None
        needs = ctx.needs_input_grad
        if needs_differentiable_backward(g):
            dx, dweight, dbias = _reference_gradients(residual_grad, g, x, weight, bias, mask, ctx.config)
        else:
            d, eps, centered = ctx.config
            found = _backward(residual_grad, g, x, weight, mask, means, d, eps, centered, needs[2], needs[3])
            dx, dweight, dbias = _match_parameters(found, weight, bias)
        return dx if needs[0] else None, dx if needs[1] else None, dweight, dbias, None, None


_apply = fast_apply(_RowNormFunction)


def _match_parameters(
    found: tuple[Tensor, Tensor | None, Tensor | None], weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Convert gradients to the shape and dtype of their parameters."""
    dx, dweight, dbias = found
    return (
        dx,
        None if dweight is None else _match_parameter(dweight, weight),
        None if dbias is None else _match_parameter(dbias, bias),
    )


def _match_parameter(found: Tensor, given: Tensor) -> Tensor:
    if given.dim() != 1:
        found = found.reshape(given.shape)
    return found if given.dtype == torch.float32 else found.to(given.dtype)


def _gain(weight: Tensor | None, d: int) -> Tensor:
    return constant_vector(1.0, d) if weight is None else to_float32(weight)


def _reference(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mask: Tensor | None, config: RowNormConfig
) -> tuple[Tensor, NormStatistics]:
    rows = x.reshape(-1, config.d)
    y, statistics = norm_reference.normalize_with_batch_statistics(
        rows,
        _ROWS.bind(rows.shape),
        statistic=Statistic.which(centers=config.centered),
        eps=config.eps,
        affine=Affine(weight, bias, (1, config.d)),
        mask=None if mask is None else mask.reshape(-1),
    )
    return y.reshape(x.shape), statistics


def _reference_gradients(
    residual_grad: Tensor | None,
    g: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mask: Tensor | None,
    config: RowNormConfig,
) -> list[Tensor | None]:
    result = reference_gradients(lambda: _reference(x, weight, bias, mask, config)[0], (x, weight, bias), g)
    if residual_grad is not None:
        result[0] = residual_grad if result[0] is None else result[0] + residual_grad
    return result


# Operators return tensors only: an empty tensor represents None. A graph may be called with other strides than it was
# traced with, so operators make their inputs contiguous first.
@partial(as_operator, "normscope::norm_rows")
def _operator(
    x: Tensor,
    branch: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    mask: Tensor | None,
    d: int,
    eps: float,
    centered: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    x, branch, weight, bias, mask = all_contiguous(x, branch, weight, bias, mask)
    total, y, means = _forward(x, branch, weight, bias, mask, d, eps, centered)
    return empty_float32(0) if total is None else total, y, empty_float64(0) if means is None else means


@partial(as_operator, "normscope::norm_rows_backward")
def _backward_operator(
    residual_grad: Tensor | None,
    g: Tensor,
    x: Tensor,
    weight: Tensor | None,
    mask: Tensor | None,
    means: Tensor,
    d: int,
    eps: float,
    centered: bool,
    needs_weight_grad: bool,
    needs_bias_grad: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    x, weight, mask = all_contiguous(x, weight, mask)
    dx, dweight, dbias = _backward(
        residual_grad, g, x, weight, mask, means, d, eps, centered, needs_weight_grad, needs_bias_grad
    )
    return dx, empty_float32(0) if dweight is None else dweight, empty_float32(0) if dbias is None else dbias


@_operator.register_fake
def _(
    x: Tensor, branch: Any, weight: Any, bias: Any, mask: Any, d: int, eps: float, centered: bool
) -> tuple[Tensor, Tensor, Tensor]:
    total = x.new_empty(0, dtype=torch.float32) if branch is None else x.new_empty(x.shape)
    return total, x.new_empty(x.shape), x.new_empty(x.numel() // d if centered else 0, dtype=torch.float64)


@_backward_operator.register_fake
def _(
    residual_grad: Any,
    g: Tensor,
    x: Tensor,
    weight: Any,
    mask: Any,
    means: Any,
    d: int,
    eps: Any,
    centered: Any,
    *needs_grad: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    dweight, dbias = (x.new_empty(d if needed else 0, dtype=torch.float32) for needed in needs_grad)
    return x.new_empty(x.shape), dweight, dbias


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    x, branch, weight, bias, mask, *config = inputs
    ctx.save_for_backward(x if branch is None else output[0], weight, bias, mask, output[2])
    ctx.config, ctx.has_residual = RowNormConfig(*config), branch is not None


def _operator_backward(ctx: Any, residual_grad: Tensor, g: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, bias, mask, means = ctx.saved_tensors
    _, second, needs_weight_grad, needs_bias_grad, *_ = ctx.needs_input_grad
    dx, dweight, dbias = _backward_operator(
        residual_grad if ctx.has_residual else None,
        g,
        x,
        weight,
        mask,
        means,
        *ctx.config,
        needs_weight_grad,
        needs_bias_grad,
    )
    needed = dweight if needs_weight_grad else None, dbias if needs_bias_grad else None
    dx, dweight, dbias = _match_parameters((dx, *needed), weight, bias)
    return dx, dx if second else None, dweight, dbias, None, None, None, None


_operator.register_autograd(_operator_backward, setup_context=_setup_context)
