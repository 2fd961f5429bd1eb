"""Reference implementation of normalization: mean, variance, standardize, affine, over the axes of a plan.

`normalize_with_batch_statistics` computes the statistics from the input; `normalize_with_running_statistics` takes them
as arguments. The fused kernels are tested against these functions.

On the CPU everything is computed in float64, whatever the input dtype: a float32 input of 1e30 does not overflow when
squared, a small variance around a large mean keeps its digits, and only the final cast rounds.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple, cast, get_args

import torch
from torch import Tensor

from normscope.checks import short_repr
from normscope.errors import ConfigError, DtypeError, ShapeError
from normscope.ops.distributed import sum_over_ranks
from normscope.scope import Plan

Statistic = Literal["standardize", "rms"]
"""What is divided out: the standard deviation after centring, or the root mean square with no centring."""


@dataclass(frozen=True)
class NormStatistics:
    """What a norm knows of its input, laid out to broadcast over it.

    `mean` is None for the rms statistic; `square` is then the mean square, else the variance.
    `count` is how many real values each statistic saw, on all ranks together.
    """

    mean: Tensor | None
    square: Tensor
    count: Tensor


class Affine(NamedTuple):
    """A gain and a bias, each of which may be missing, and the shape that lays them along the input."""

    weight: Tensor | None = None
    bias: Tensor | None = None
    along: tuple[int, ...] = ()
    is_row_norm: bool | None = None
    """Whether statistics are over rows that the gain lies along; None if nobody has looked yet."""


def normalize_with_batch_statistics(
    x: Tensor, plan: Plan, *, statistic: Statistic, eps: float, affine: Affine, mask: Tensor | None, sync: bool = False
) -> tuple[Tensor, NormStatistics]:
    """Normalize by the input's own moments, which are returned beside the result."""
    work, real = prepare(x, plan, mask)
    moments = measure(work, plan, statistic, real, sync, refine=work.dtype == x.dtype)
    y = _standardize(work, moments.mean, moments.square, eps, real)
    return finish(y, affine, real, x), moments


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
    work, real = prepare(x, plan, mask)
    mean = None if mean is None else mean.to(work.dtype)
    return finish(_standardize(work, mean, square.to(work.dtype), eps, real), affine, real, x)


def prepare(x: Tensor, plan: Plan, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The input in the working type and the plan's shape, zero at padding; and the mask beside it."""
    work = x.to(working_dtype(x)).reshape(plan.split_shape)
    if mask is None:
        return work, None
    real = expand_mask(mask, plan)
    return work.where(real, 0.0), real


def measure(
    x: Tensor, plan: Plan, statistic: Statistic, real: Tensor | None, sync: bool, *, refine: bool = False
) -> NormStatistics:
    """Steps one and two: the mean and the variance (or the mean square alone) over the scope.

    `x` is in the plan's split shape and zero where `real` is False. `refine` adds to the mean what is left after
    centring, for inputs that have no more digits than the working type.
    """
    dims = plan.reduced
    seen = x.new_full(plan.along(()), plan.count) if real is None else real.sum(dims, keepdim=True).to(x.dtype)
    count = sum_over_ranks(seen, sync)
    divisor = count.clamp(min=1)  # a mean over padding alone is zero, and not a number less
    mean = None
    if statistic == "standardize":
        mean = sum_over_ranks(x.sum(dims, keepdim=True), sync) / divisor
        if refine:
            mean = mean + sum_over_ranks(_centre(x, mean, real).sum(dims, keepdim=True), sync) / divisor
    square = sum_over_ranks(_centre(x, mean, real).square().sum(dims, keepdim=True), sync) / divisor
    if real is not None:  # what saw padding alone is divided by one, and not by zero where eps is zero
        square = square.where(count > 0, 1.0)
    return NormStatistics(mean, square, count)


def _centre(x: Tensor, mean: Tensor | None, real: Tensor | None) -> Tensor:
    if mean is None:
        return x
    centred = x - mean
    return centred if real is None else centred.where(real, 0.0)


def _standardize(x: Tensor, mean: Tensor | None, square: Tensor, eps: float, real: Tensor | None) -> Tensor:
    """Step three: centre, and divide by the root of variance + eps."""
    return _centre(x, mean, real) * torch.rsqrt(square + eps)


def finish(y: Tensor, affine: Affine, real: Tensor | None, like: Tensor) -> Tensor:
    """Step four, the gain and the bias; then the shape and the type of the input.

    Padding becomes zero here, which also keeps the gradients that come back from it away from the parameters.
    """
    if affine.weight is not None:
        y = y * affine.weight.to(y.dtype).reshape(affine.along)
    if affine.bias is not None:
        y = y + affine.bias.to(y.dtype).reshape(affine.along)
    if real is not None:
        y = y.where(real, 0.0)
    return y.reshape(like.shape).to(like.dtype)


def expand_mask(mask: Tensor, plan: Plan) -> Tensor:
    """A mask of real positions, laid out along the plan's axes.

    It has either the tensor's rank, with 1 where it does not vary, or just the tensor's leading dimensions.
    """
    if not isinstance(mask, Tensor):
        raise DtypeError(f"a mask is a boolean tensor, True at real positions, but got {type(mask).__name__}")
    if mask.dtype != torch.bool:
        raise DtypeError(f"a mask is boolean, True at real positions, but got {mask.dtype}; use mask.bool()")
    rank, given = len(plan.shape), tuple(mask.shape)
    full = given + (1,) * (rank - len(given))
    if len(full) != rank or any(m != 1 and m != size for m, size in zip(full, plan.shape, strict=True)):
        raise ShapeError(
            f"a mask of shape {given} does not fit a tensor of shape {plan.shape}; give it the shape of the tensor's "
            f"leading dimensions, or {rank} dimensions, each as in the tensor or 1"
        )
    return mask.reshape(full).expand(plan.shape).reshape(plan.split_shape)


def working_dtype(x: Tensor) -> torch.dtype:
    """The type that the steps run in: float64 on a CPU, where exactness comes first, else never less than float32."""
    if x.dtype == torch.float64 or x.device.type == "cpu":
        return torch.float64
    return torch.float32


def default_eps(x: Tensor) -> float:
    """The eps of torch's RMSNorm where none is given: the spacing of float32, or of float64 for its own."""
    return torch.finfo(torch.float64 if x.dtype == torch.float64 else torch.float32).eps


def check_statistic(statistic: str) -> Statistic:
    if not isinstance(statistic, str) or statistic not in get_args(Statistic):
        raise ConfigError(
            f"statistic={short_repr(statistic)} is not known; choose one of {', '.join(get_args(Statistic))}"
        )
    return cast(Statistic, statistic)


def check_dense(x: Tensor, use: object) -> None:
    """Refuse what has no memory of its own for every number: sparse and nested tensors."""
    if x.layout is torch.strided and not x.is_nested:
        return
    kind, fix = f"a tensor of layout {x.layout}", "convert it with x.to_dense()"
    if x.is_nested:
        kind, fix = "a nested tensor", "pad it with torch.nested.to_padded_tensor, and give a mask"
    raise DtypeError(f"a dense tensor is needed for {use}, but got {kind}\nfix: {fix}")


def check_floating(x: Tensor) -> None:
    if type(x) is Tensor and x.is_floating_point() and x.layout is torch.strided and not x.is_nested:
        return
    if not isinstance(x, Tensor):
        raise DtypeError(f"a norm takes a tensor, but got {type(x).__name__}; make one with torch.as_tensor")
    if not x.is_floating_point():
        raise DtypeError(f"a norm takes real numbers, but got a tensor of {x.dtype}; convert it with x.float()")
    check_dense(x, "a norm")
