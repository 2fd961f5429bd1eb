"""The fused row kernels as a differentiable function of tensors.

`fused/rows.py` has the loops; here is who calls them: how many threads, what is kept, and the backward pass. A backward
pass that is itself to be differentiated takes the readable form, and so does everything where numba fails.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from normscope.kernels import normalize as steps
from normscope.kernels.fused import rows as loops
from normscope.kernels.memory import address, constant, is_learnt, plain
from normscope.kernels.normalize import Affine, Moments
from normscope.kernels.switch import Form, attempt
from normscope.kernels.threads import pool_for
from normscope.scope import Scope

_ROWS = Scope.parse("r [d]")


class Setting(NamedTuple):
    d: int
    """The length of a row."""
    eps: float
    centred: bool


def normalize(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, real: Tensor | None, setting: Setting, form: Form
) -> Tensor:
    """Normalize contiguous rows of d numbers, with a gain and a bias along the row and a mask of rows."""
    if form == "operator":
        y, _ = _operator(x, weight, bias, real, *setting)
    elif is_learnt(x, weight, bias):
        y = _Rows.apply(x, weight, bias, real, setting)
    else:
        y, _ = _forward(x, weight, bias, real, *setting)
    result: Tensor = y
    return result


def _forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, real: Tensor | None, d: int, eps: float, centred: bool
) -> tuple[Tensor, Tensor]:
    """The result; and the mean of each row, if it is centred."""
    wide, gain, shift = plain(x), _gain(weight, d), constant(0.0, d) if bias is None else plain(bias)
    y, rows = torch.empty_like(wide), wide.numel() // d
    means = torch.empty(rows if centred else 0, dtype=torch.float64)
    done = attempt(
        loops.forward, *pool_for(wide.numel()), wide.data_ptr(), gain.data_ptr(), shift.data_ptr(), address(real),
        y.data_ptr(), means.data_ptr(), rows, d, eps, centred, real is not None,
    )  # fmt: skip
    if done:
        return y if wide is x else y.to(x.dtype), means
    y, moments = _by_steps(x, weight, bias, real, Setting(d, eps, centred))
    return y, means if moments.mean is None else moments.mean.flatten()


def _backward(
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
    """The gradients of the input, of the gain and of the bias; those two are empty if they are not learnt."""
    wide, gain, g = plain(x), _gain(weight, d), plain(g)
    dx, rows = torch.empty_like(wide), wide.numel() // d
    dweight, dbias = torch.empty(d if learns_weight else 0), torch.empty(d if learns_bias else 0)
    blocks = min(64, -(-rows // 32))  # a number that depends on the rows alone, so that the bits do as well
    sums = torch.empty((3 * blocks + 1) * d if learns_weight or learns_bias else 0, dtype=torch.float64)
    done = attempt(
        loops.backward, *pool_for(wide.numel()), wide.data_ptr(), gain.data_ptr(), address(real), means.data_ptr(),
        g.data_ptr(), dx.data_ptr(), dweight.data_ptr(), dbias.data_ptr(), sums.data_ptr(), blocks, rows, d, eps,
        centred, learns_weight, learns_bias, real is not None,
    )  # fmt: skip
    if done:
        return dx if wide is x else dx.to(x.dtype), dweight, dbias
    with torch.enable_grad():
        learnt = None if weight is None else weight.detach().requires_grad_()
        shift = torch.zeros(d, requires_grad=True) if learns_bias else None
        found = _readable_gradients(g, x.detach().requires_grad_(), learnt, shift, real, Setting(d, eps, centred))
    dx, dweight, dbias = (torch.empty(0) if f is None else f.detach() for f in found)
    return dx, dweight, dbias


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, real: Tensor | None, setting: Setting
    ) -> Tensor:
        y, means = _forward(x, weight, bias, real, *setting)
        ctx.save_for_backward(x, weight, bias, real, means)
        ctx.setting = setting
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, real, means = ctx.saved_tensors
        if torch.is_grad_enabled():  # the gradients are to be differentiated in their turn
            return *_readable_gradients(grads[0], x, weight, bias, real, ctx.setting), None, None
        learns_weight, learns_bias = ctx.needs_input_grad[1:3]
        d, eps, centred = ctx.setting
        found = _backward(grads[0], x, weight, real, means, d, eps, centred, learns_weight, learns_bias)
        return *_as_given(found, weight, bias, learns_weight, learns_bias), None, None


def _as_given(
    found: tuple[Tensor, Tensor, Tensor], weight: Tensor, bias: Tensor, learns_weight: bool, learns_bias: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The gradients in the shape and type of what they are of; None for what is not learnt."""
    dx, dweight, dbias = found
    return (
        dx,
        _alike(dweight, weight) if learns_weight else None,
        _alike(dbias, bias) if learns_bias else None,
    )


def _alike(found: Tensor, given: Tensor) -> Tensor:
    if given.dim() != 1:
        found = found.reshape(given.shape)
    return found if given.dtype == torch.float32 else found.to(given.dtype)


def _gain(weight: Tensor | None, d: int) -> Tensor:
    return constant(1.0, d) if weight is None else plain(weight)


def _by_steps(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, real: Tensor | None, setting: Setting
) -> tuple[Tensor, Moments]:
    rows = x.reshape(-1, setting.d)
    y, moments = steps.by_batch(
        rows,
        _ROWS.bind(rows.shape),
        statistic="standardise" if setting.centred else "rms",
        eps=setting.eps,
        affine=Affine(weight, bias, (1, setting.d)),
        mask=None if real is None else real.reshape(-1),
    )
    return y.reshape(x.shape), moments


def _readable_gradients(
    g: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    real: Tensor | None,
    setting: Setting,
) -> list[Tensor | None]:
    y, _ = _by_steps(x, weight, bias, real, setting)
    given = (x, weight, bias)
    inputs = [t for t in given if t is not None and t.requires_grad]
    found = iter(torch.autograd.grad(y, inputs, g, create_graph=True))
    return [next(found) if t is not None and t.requires_grad else None for t in given]


_operator = torch.library.custom_op("normscope::norm_rows", _forward, mutates_args=())
_backward_operator = torch.library.custom_op("normscope::norm_rows_backward", _backward, mutates_args=())


@_operator.register_fake
def _(x: Tensor, weight: Any, bias: Any, real: Any, d: int, eps: float, centred: bool) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty(x.numel() // d if centred else 0, dtype=torch.float64)


@_backward_operator.register_fake
def _(
    g: Tensor, x: Tensor, weight: Any, real: Any, means: Tensor, d: int, eps: float, centred: bool, *learns: bool
) -> tuple[Tensor, Tensor, Tensor]:
    dweight, dbias = (x.new_empty(d if learnt else 0, dtype=torch.float32) for learnt in learns)
    return torch.empty_like(x), dweight, dbias


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, weight, bias, real, *setting = inputs
    ctx.save_for_backward(x, weight, bias, real, output[1])
    ctx.setting = Setting(*setting)


def _pull_back(ctx: Any, g: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, bias, real, means = ctx.saved_tensors
    learns_weight, learns_bias = ctx.needs_input_grad[1:3]
    found = _backward_operator(g, x, weight, real, means, *ctx.setting, learns_weight, learns_bias)
    return *_as_given(found, weight, bias, learns_weight, learns_bias), None, None, None, None


_operator.register_autograd(_pull_back, setup_context=_keep)
