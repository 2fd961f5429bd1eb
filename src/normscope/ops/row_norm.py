"""The fused row kernels as a differentiable function of tensors.

`fused/rows.py` has the loops; here is who calls them: how many threads, what is kept, and the backward pass. A backward
pass that is itself to be differentiated takes the readable form, and so does everything where numba fails.
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
from normscope.ops.fused import row_norm_backward as rows_backward
from normscope.ops.kernel_mode import Backend, as_operator, disable_kernels
from normscope.ops.norm_reference import Affine, NormStatistics
from normscope.ops.threads import thread_pool_for
from normscope.scope import Scope

_ROWS = Scope.parse("r [d]")


class RowNormConfig(NamedTuple):
    d: int
    """The length of a row."""
    eps: float
    centred: bool


def normalize(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, real: Tensor | None, setting: RowNormConfig, form: Backend
) -> Tensor:
    """Normalize contiguous rows of d numbers, with a gain and a bias along the row and a mask of rows."""
    if form == "operator":
        _, y, _ = _operator(x, None, weight, bias, real, *setting)
    elif any_requires_grad(x, weight, bias):
        y = _apply(x, None, weight, bias, real, setting)
    else:
        _, y, _ = _forward(x, None, weight, bias, real, *setting)
    result: Tensor = y
    return result


def add_and_normalize(
    x: Tensor, branch: Tensor, weight: Tensor | None, bias: Tensor | None, setting: RowNormConfig, form: Backend
) -> tuple[Tensor, Tensor]:
    """x + branch, which are float32 and of one shape; and the rows of the sum normalized."""
    if form == "operator":
        total, y, _ = _operator(x, branch, weight, bias, None, *setting)
    elif any_requires_grad(x, branch, weight, bias):
        total, y = _apply(x, branch, weight, bias, None, setting)
    else:
        total, y, _ = _forward(x, branch, weight, bias, None, *setting)
    assert total is not None
    return total, y


def _forward(
    x: Tensor,
    branch: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    real: Tensor | None,
    d: int,
    eps: float,
    centred: bool,
) -> tuple[Tensor | None, Tensor, Tensor | None]:
    """The sum with the branch (if there is one), the result, and the mean of each row (if it is centred)."""
    wide, gain, shift = to_float32(x), _gain(weight, d), constant_vector(0.0, d) if bias is None else to_float32(bias)
    total = None if branch is None else torch.empty_like(wide)
    y, rows = torch.empty_like(wide), wide.numel() // d
    means = empty_float64(rows) if centred else None
    try:
        loops.forward(
            *thread_pool_for(wide.numel()), wide.data_ptr(), address(branch), address(total), gain.data_ptr(),
            shift.data_ptr(), address(real), y.data_ptr(), address(means), rows, d, eps, centred, real is not None,
            branch is not None, bias is not None,
        )  # fmt: skip
        return total, y if wide is x else y.to(x.dtype), means
    except Exception as error:
        disable_kernels(error)
    if branch is not None:
        total = x = x + branch
    y, moments = _by_steps(x, weight, bias, real, RowNormConfig(d, eps, centred))
    return total, y, None if moments.mean is None else moments.mean.flatten()


def _backward(
    past: Tensor | None,
    g: Tensor,
    x: Tensor,
    weight: Tensor | None,
    real: Tensor | None,
    means: Tensor | None,
    d: int,
    eps: float,
    centred: bool,
    learns_weight: bool,
    learns_bias: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The gradients of the input, and of the gain and the bias if they are learnt.

    `past` is the gradient of a sum that also flows past the norm.
    """
    wide, gain, g = to_float32(x), _gain(weight, d), to_contiguous_float32(g)
    past = None if past is None else to_contiguous_float32(past)
    dx, rows, pool = torch.empty_like(wide), wide.numel() // d, thread_pool_for(wide.numel())
    dweight, dbias = empty_float32(d) if learns_weight else None, empty_float32(d) if learns_bias else None
    arrays = (
        wide.data_ptr(), gain.data_ptr(), address(real), address(means), g.data_ptr(), address(past), dx.data_ptr(),
        address(dweight), address(dbias),
    )  # fmt: skip
    flags = centred, learns_weight, learns_bias, real is not None, past is not None
    try:
        if d >= long_rows.LONG:
            room, sums = (empty_float64(size) for size in long_rows.room_needed(pool.threads, rows))
            long_rows.backward(*pool, *arrays, room.data_ptr(), sums.data_ptr(), rows, d, eps, *flags)
        else:
            blocks = min(16, -(-rows // 32))  # a number that depends on the rows alone, so that the bits do as well
            sums = empty_float64((2 * blocks + 1) * d if learns_weight or learns_bias else 0)
            rows_backward.backward(*pool, *arrays, sums.data_ptr(), blocks, rows, d, eps, *flags)
        return dx if wide is x else dx.to(x.dtype), dweight, dbias
    except Exception as error:
        disable_kernels(error)
    learnt = None if weight is None else weight.detach().requires_grad_()
    shift = empty_float32(d).zero_().requires_grad_() if learns_bias else None
    found = _reference_gradients(
        past, g, x.detach().requires_grad_(), learnt, shift, real, RowNormConfig(d, eps, centred)
    )
    assert found[0] is not None
    return found[0], found[1], found[2]


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        branch: Tensor | None,
        weight: Tensor | None,
        bias: Tensor | None,
        real: Tensor | None,
        setting: RowNormConfig,
    ) -> Any:
        total, y, means = _forward(x, branch, weight, bias, real, *setting)
        ctx.save_for_backward(x if branch is None else total, weight, bias, real, means)
        ctx.setting = setting
        ctx.set_materialize_grads(False)
        if branch is not None and not (x.requires_grad or branch.requires_grad):  # only the gain learns
            ctx.mark_non_differentiable(total)
        return y if branch is None else (total, y)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        past, g = grads if len(grads) == 2 else (None, grads[0])
        x, weight, bias, real, means = ctx.saved_tensors
        if g is None:  # the result was not used
            return past, past, None, None, None, None
        needs = ctx.needs_input_grad
        if needs_differentiable_backward(g):
            dx, dweight, dbias = _reference_gradients(past, g, x, weight, bias, real, ctx.setting)
        else:
            d, eps, centred = ctx.setting
            found = _backward(past, g, x, weight, real, means, d, eps, centred, needs[2], needs[3])
            dx, dweight, dbias = _as_given(found, weight, bias)
        return dx if needs[0] else None, dx if needs[1] else None, dweight, dbias, None, None


_apply = fast_apply(_Rows)


def _as_given(
    found: tuple[Tensor, Tensor | None, Tensor | None], weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The gradients in the shape and type of what they are of."""
    dx, dweight, dbias = found
    return dx, None if dweight is None else _alike(dweight, weight), None if dbias is None else _alike(dbias, bias)


def _alike(found: Tensor, given: Tensor) -> Tensor:
    if given.dim() != 1:
        found = found.reshape(given.shape)
    return found if given.dtype == torch.float32 else found.to(given.dtype)


def _gain(weight: Tensor | None, d: int) -> Tensor:
    return constant_vector(1.0, d) if weight is None else to_float32(weight)


def _by_steps(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, real: Tensor | None, setting: RowNormConfig
) -> tuple[Tensor, NormStatistics]:
    rows = x.reshape(-1, setting.d)
    y, moments = norm_reference.normalize_with_batch_statistics(
        rows,
        _ROWS.bind(rows.shape),
        statistic="standardize" if setting.centred else "rms",
        eps=setting.eps,
        affine=Affine(weight, bias, (1, setting.d)),
        mask=None if real is None else real.reshape(-1),
    )
    return y.reshape(x.shape), moments


def _reference_gradients(
    past: Tensor | None,
    g: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    real: Tensor | None,
    setting: RowNormConfig,
) -> list[Tensor | None]:
    result = reference_gradients(lambda: _by_steps(x, weight, bias, real, setting)[0], (x, weight, bias), g)
    if past is not None:
        result[0] = past if result[0] is None else result[0] + past
    return result


# An operator gives tensors only: an empty one stands for what is not there. A graph may be called with tensors that lie
# in memory otherwise than those it was made with, so an operator brings all it is given in order first.
@partial(as_operator, "normscope::norm_rows")
def _operator(
    x: Tensor,
    branch: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    real: Tensor | None,
    d: int,
    eps: float,
    centred: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    x, branch, weight, bias, real = all_contiguous(x, branch, weight, bias, real)
    total, y, means = _forward(x, branch, weight, bias, real, d, eps, centred)
    return empty_float32(0) if total is None else total, y, empty_float64(0) if means is None else means


@partial(as_operator, "normscope::norm_rows_backward")
def _backward_operator(
    past: Tensor | None,
    g: Tensor,
    x: Tensor,
    weight: Tensor | None,
    real: Tensor | None,
    means: Tensor,
    d: int,
    eps: float,
    centred: bool,
    learns_weight: bool,
    learns_bias: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    x, weight, real = all_contiguous(x, weight, real)
    dx, dweight, dbias = _backward(past, g, x, weight, real, means, d, eps, centred, learns_weight, learns_bias)
    return dx, empty_float32(0) if dweight is None else dweight, empty_float32(0) if dbias is None else dbias


@_operator.register_fake
def _(
    x: Tensor, branch: Any, weight: Any, bias: Any, real: Any, d: int, eps: float, centred: bool
) -> tuple[Tensor, Tensor, Tensor]:
    total = x.new_empty(0, dtype=torch.float32) if branch is None else x.new_empty(x.shape)
    return total, x.new_empty(x.shape), x.new_empty(x.numel() // d if centred else 0, dtype=torch.float64)


@_backward_operator.register_fake
def _(
    past: Any, g: Tensor, x: Tensor, weight: Any, real: Any, means: Any, d: int, eps: Any, centred: Any, *learns: bool
) -> tuple[Tensor, Tensor, Tensor]:
    dweight, dbias = (x.new_empty(d if learnt else 0, dtype=torch.float32) for learnt in learns)
    return x.new_empty(x.shape), dweight, dbias


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    x, branch, weight, bias, real, *setting = inputs
    ctx.save_for_backward(x if branch is None else output[0], weight, bias, real, output[2])
    ctx.setting, ctx.added = RowNormConfig(*setting), branch is not None


def _operator_backward(ctx: Any, past: Tensor, g: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, bias, real, means = ctx.saved_tensors
    _, second, learns_weight, learns_bias, *_ = ctx.needs_input_grad
    dx, dweight, dbias = _backward_operator(
        past if ctx.added else None, g, x, weight, real, means, *ctx.setting, learns_weight, learns_bias
    )
    learnt = dweight if learns_weight else None, dbias if learns_bias else None
    dx, dweight, dbias = _as_given((dx, *learnt), weight, bias)
    return dx, dx if second else None, dweight, dbias, None, None, None, None


_operator.register_autograd(_operator_backward, setup_context=_setup_context)
