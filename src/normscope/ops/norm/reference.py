"""Reference implementation of normalization: mean, variance, standardize, affine, over the axes of a plan.

`normalize_with_batch_statistics` computes the statistics from the input; `normalize_with_running_statistics` takes them
as arguments. The fused kernels are tested against these functions.

On the CPU everything is computed in float64, whatever the input dtype: a float32 input of 1e30 does not overflow when
squared, a small variance around a large mean keeps its digits, and only the final cast rounds.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from normscope.errors import DtypeError, ShapeError
from normscope.ops.norm.distributed import sum_over_ranks
from normscope.ops.norm.statistic import Statistic
from normscope.scope import Plan


@dataclass(frozen=True)
class NormStatistics:
    """The statistics of a norm's input, in a shape that broadcasts over it.

    Args:
        mean: the mean, or None if the statistic does not center.
        second_moment: the mean of `Statistic.of_each`: the (biased) variance, or the mean square.
        count: the number of unmasked values behind each statistic, over all ranks.
    """

    mean: Tensor | None
    second_moment: Tensor
    count: Tensor


class Affine(NamedTuple):
    """The optional weight and bias of a norm, and the shape in which they broadcast over the input."""

    weight: Tensor | None = None
    bias: Tensor | None = None
    broadcast_shape: tuple[int, ...] = ()
    is_row_norm: bool | None = None
    """Whether `memory_layout.is_row_norm` holds; None if not yet determined."""


def normalize_with_batch_statistics(
    x: Tensor, plan: Plan, *, statistic: Statistic, eps: float, affine: Affine, mask: Tensor | None, sync: bool = False
) -> tuple[Tensor, NormStatistics]:
    """Normalize with statistics computed from the input. Returns the result and the statistics."""
    work, mask = prepare_input(x, plan, mask)
    statistics = compute_statistics(work, plan, statistic, mask, sync, refine=work.dtype == x.dtype)
    y = _center(work, statistics.mean, mask) * statistic.factor(statistics.second_moment, eps)
    return apply_affine(y, affine, mask, x), statistics


def normalize_with_running_statistics(
    x: Tensor,
    plan: Plan,
    mean: Tensor | None,
    second_moment: Tensor,
    *,
    eps: float,
    affine: Affine,
    mask: Tensor | None,
) -> Tensor:
    """Normalize with given statistics, whose shape broadcasts over the plan's axes."""
    work, mask = prepare_input(x, plan, mask)
    y = _center(work, None if mean is None else mean.to(work.dtype), mask)
    return apply_affine(y * torch.rsqrt(second_moment.to(work.dtype) + eps), affine, mask, x)


def prepare_input(x: Tensor, plan: Plan, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Cast the input to the compute dtype and the plan's split shape, with padding zeroed; expand the mask."""
    work = x.to(compute_dtype(x)).reshape(plan.split_shape)
    if mask is None:
        return work, None
    mask = expand_mask(mask, plan)
    return work.where(mask, 0.0), mask


def compute_statistics(
    x: Tensor, plan: Plan, statistic: Statistic, mask: Tensor | None, sync: bool, *, refine: bool = False
) -> NormStatistics:
    """Compute the mean (if the statistic centers) and the second moment over the plan's reduced axes.

    Args:
        x: the input in the plan's split shape, zero where `mask` is False.
        refine: add the mean of the centered values to the mean, a second pass that recovers its low digits. Needed
            if the input has as many digits as the compute dtype.
    """
    dims = plan.reduced
    seen = (
        x.new_full(plan.broadcast_shape(()), plan.count) if mask is None else mask.sum(dims, keepdim=True).to(x.dtype)
    )
    count = sum_over_ranks(seen, sync)
    divisor = count.clamp(min=1)  # the mean over padding alone is 0, not NaN
    mean = None
    if statistic.centers:
        mean = sum_over_ranks(x.sum(dims, keepdim=True), sync) / divisor
        if refine:
            mean = mean + sum_over_ranks(_center(x, mean, mask).sum(dims, keepdim=True), sync) / divisor
    second_moment = sum_over_ranks(statistic.of_each(_center(x, mean, mask)).sum(dims, keepdim=True), sync) / divisor
    if mask is not None:  # padding alone: divide by 1, also if eps is 0
        second_moment = second_moment.where(count > 0, 1.0)
    return NormStatistics(mean, second_moment, count)


def _center(x: Tensor, mean: Tensor | None, mask: Tensor | None) -> Tensor:
    if mean is None:
        return x
    centered = x - mean
    return centered if mask is None else centered.where(mask, 0.0)


def apply_affine(y: Tensor, affine: Affine, mask: Tensor | None, like: Tensor) -> Tensor:
    """Apply weight and bias, zero the padding, and restore the shape and dtype of the input.

    Zeroing the padding also keeps its gradients out of the parameters.
    """
    if affine.weight is not None:
        y = y * affine.weight.to(y.dtype).reshape(affine.broadcast_shape)
    if affine.bias is not None:
        y = y + affine.bias.to(y.dtype).reshape(affine.broadcast_shape)
    if mask is not None:
        y = y.where(mask, 0.0)
    return y.reshape(like.shape).to(like.dtype)


def expand_mask(mask: Tensor, plan: Plan) -> Tensor:
    """Expand a mask (True at real positions) to the plan's split shape.

    The mask has the tensor's leading dimensions, or the tensor's rank with size 1 where it does not vary.
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


def compute_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of the reference implementation: float64 on the CPU, otherwise at least float32."""
    if x.dtype == torch.float64 or x.device.type == "cpu":
        return torch.float64
    return torch.float32


def default_eps(x: Tensor) -> float:
    """Return the default eps of torch.nn.RMSNorm: machine epsilon of float32, or of float64 for float64 inputs."""
    return torch.finfo(torch.float64 if x.dtype == torch.float64 else torch.float32).eps


def check_dense(x: Tensor, use: object) -> None:
    """Reject sparse and nested tensors."""
    if x.layout is torch.strided and not x.is_nested:
        return
    kind, fix = f"a tensor of layout {x.layout}", "convert it with x.to_dense()"
    if x.is_nested:
        kind, fix = "a nested tensor", "pad it with torch.nested.to_padded_tensor, and give a mask"
    raise DtypeError(f"expected a dense tensor for {use}, but got {kind}\nfix: {fix}")


def check_floating(x: Tensor) -> None:
    """Reject anything but a dense floating-point tensor."""
    if type(x) is Tensor and x.is_floating_point() and x.layout is torch.strided and not x.is_nested:
        return
    if not isinstance(x, Tensor):
        raise DtypeError(f"a norm takes a tensor, but got {type(x).__name__}; make one with torch.as_tensor")
    if not x.is_floating_point():
        fix = "normalize x.real and x.imag, or torch.view_as_real(x)" if x.is_complex() else "convert it with x.float()"
        raise DtypeError(f"a norm requires a floating-point tensor, but got {x.dtype}\nfix: {fix}")
    check_dense(x, "a norm")
