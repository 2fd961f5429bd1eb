"""The fused row kernels as a differentiable function of tensors.

`fused/rows.py` has the loops; here is who calls them: which norms are over rows, how many threads, and the backward
pass. A backward pass that is itself to be differentiated takes the readable form.
"""

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from normscope.kernels import normalize as steps
from normscope.kernels.fused import rows as loops
from normscope.kernels.normalize import Affine, Statistic
from normscope.kernels.threads import threads_for
from normscope.scope import Plan, Scope

_ROWS = Scope.parse("r [d]")


class _Settings(NamedTuple):
    statistic: Statistic
    eps: float
    d: int  # the length of a row

    @property
    def centred(self) -> bool:
        return self.statistic == "standardise"


def fits(x: Tensor, plan: Plan, affine: Affine, mask: Tensor | None) -> bool:
    """Whether each statistic is over one stretch of contiguous memory, with a gain that lies along it."""
    kept = len(plan.kept)
    return (
        x.dtype == torch.float32
        and x.is_contiguous()
        and x.numel() > 0
        and plan.kept == tuple(range(kept))
        and all(_lies_along(parameter, affine.along, plan) for parameter in (affine.weight, affine.bias))
        and (mask is None or _masks_rows(mask, plan))
    )


def _lies_along(parameter: Tensor | None, along: tuple[int, ...], plan: Plan) -> bool:
    if parameter is None:
        return True
    kept = len(plan.kept)
    row = (1,) * kept + plan.split_shape[kept:]
    return along == row and parameter.dtype == torch.float32 and parameter.is_contiguous()


def _masks_rows(mask: Tensor, plan: Plan) -> bool:
    """Whether the mask tells rows apart and nothing inside of them. Split axes are left to the readable form."""
    return isinstance(mask, Tensor) and plan.shape == plan.split_shape and mask.dim() <= len(plan.kept)


def normalize(
    x: Tensor, plan: Plan, *, statistic: Statistic, eps: float, affine: Affine, mask: Tensor | None
) -> Tensor:
    """What `by_batch` gives for an input that `fits`."""
    real = None
    if mask is not None:
        real = steps.lay_mask(mask, plan).flatten(len(plan.kept))[..., 0].contiguous()
    weight, bias, settings = affine.weight, affine.bias, _Settings(statistic, eps, plan.count)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, weight, bias)):
        return cast(Tensor, _Rows.apply(x, weight, bias, real, settings))
    return _forward(x, weight, bias, real, settings)


def _forward(x: Tensor, weight: Tensor | None, bias: Tensor | None, real: Tensor | None, settings: _Settings) -> Tensor:
    d, eps, centred = settings.d, settings.eps, settings.centred
    y, rows = torch.empty_like(x), x.numel() // d
    run = loops.forward_by_many if threads_for(x.numel()) > 1 else loops.forward
    run(
        x.data_ptr(), _address(weight), _address(bias), _address(real), y.data_ptr(), rows, d, eps, centred,
        weight is not None, bias is not None, real is not None, _block(rows),
    )  # fmt: skip
    return y


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, real: Tensor, settings: _Settings) -> Tensor:
        ctx.save_for_backward(x, weight, bias, real)
        ctx.settings = settings
        return _forward(x, weight, bias, real, settings)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, real = ctx.saved_tensors
        if torch.is_grad_enabled():  # the gradients are to be differentiated in their turn
            return *_readable_gradients(grads[0], x, Affine(weight, bias), real, ctx.settings), None, None
        d, eps, centred = ctx.settings.d, ctx.settings.eps, ctx.settings.centred
        g, dx, rows = grads[0].contiguous(), torch.empty_like(x), x.numel() // d
        dweight = torch.empty_like(weight) if weight is not None and ctx.needs_input_grad[1] else None
        dbias = torch.empty_like(bias) if bias is not None and ctx.needs_input_grad[2] else None
        run = loops.backward_by_many if threads_for(x.numel()) > 1 else loops.backward
        run(
            x.data_ptr(), _address(weight), _address(real), g.data_ptr(), dx.data_ptr(), _address(dweight),
            _address(dbias), rows, d, eps, centred, weight is not None, dweight is not None, dbias is not None,
            real is not None, _block(rows),
        )  # fmt: skip
        return dx, dweight, dbias, None, None


def _readable_gradients(
    g: Tensor, x: Tensor, affine: Affine, real: Tensor | None, settings: _Settings
) -> list[Tensor | None]:
    rows = x.reshape(-1, settings.d)
    y, _ = steps.by_batch(
        rows,
        _ROWS.bind(rows.shape),
        statistic=settings.statistic,
        eps=settings.eps,
        affine=Affine(affine.weight, affine.bias, (1, settings.d)),
        mask=None if real is None else real.reshape(-1),
    )
    given = (x, affine.weight, affine.bias)
    inputs = [t for t in given if t is not None and t.requires_grad]
    found = iter(torch.autograd.grad(y, inputs, g.reshape(-1, settings.d), create_graph=True))
    return [next(found) if t is not None and t.requires_grad else None for t in given]


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _block(rows: int) -> int:
    """How many rows are summed up together: a number that depends on the rows alone, so that the bits do as well."""
    return max(32, -(-rows // 256))
