"""The fused kernels for norms of channels as a differentiable function of tensors.

`fused/segments.py` and `fused/columns.py` have the loops, for channels whose places lie together and for places whose
channels do. A backward pass that is itself to be differentiated takes the readable form, and so does everything where
numba fails.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from normscope.ops.buffers import (
    address,
    any_requires_grad,
    constant_vector,
    empty_float32,
    empty_float64,
    fast_apply,
    match_layout,
    needs_differentiable_backward,
    reference_gradients,
    to_contiguous_float32,
)
from normscope.ops.channel_norm_reference import normalize_channels_reference
from normscope.ops.fused import channel_norm as segments
from normscope.ops.fused import channels_last_norm as columns
from normscope.ops.kernel_mode import Backend, as_operator, try_kernel
from normscope.ops.memory_layout import ChannelLayout
from normscope.ops.threads import thread_pool_for


class ChannelStatistics(NamedTuple):
    """What a norm has seen, of each group of numbers that share a statistic."""

    means: Tensor
    squares: Tensor
    counts: Tensor
    """How many real numbers there were."""


def normalize(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    real: Tensor | None,
    known: tuple[Tensor, Tensor] | None,
    layout: ChannelLayout,
    eps: float,
    centred: bool,
    form: Backend,
    channels_last: bool,
) -> tuple[Tensor, ChannelStatistics]:
    """Normalize by the input's own statistics, or by a mean and a mean square of each that are known.

    `x` lies densely in memory, as the layout says, contiguous or with the channels last; `real` has a flag for each
    sample and place.
    """
    means, squares = known or (None, None)
    given = (x, weight, bias, real, means, squares, layout.numbers(), eps, centred)
    if form == "operator":
        y, *measured = _operator(*given, channels_last)
    elif any_requires_grad(x, weight, bias):
        measured = []
        y = _apply(measured, *given)
    else:
        y, *measured = _forward(*given)
    return y, ChannelStatistics(*measured)


def _forward(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    real: Tensor | None,
    means: Tensor | None,
    squares: Tensor | None,
    numbers: Sequence[int],
    eps: float,
    centred: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    at, wide, given = ChannelLayout.from_numbers(numbers), x.float(), squares is not None
    gain = constant_vector(1.0, at.channels) if weight is None else to_contiguous_float32(weight)
    shift = constant_vector(0.0, at.channels) if bias is None else to_contiguous_float32(bias)
    y, blocks, pool = torch.empty_like(wide), _blocks(at), thread_pool_for(wide.numel())
    mean_of, square_of = (empty_float64(at.groups) if t is None else t.double().clone()
                          for t in (means, squares))  # fmt: skip
    counts = empty_float64(at.groups if at.kind == "segments" else at.outer * blocks)
    arrays = wide, gain, shift, real, y, mean_of, square_of, counts
    shape: tuple[int, ...]
    flags = eps, centred, real is not None, given
    if at.kind == "segments":
        shape = at.groups, at.members, at.channels, at.inner, at.together, at.shared
        done = try_kernel(segments.forward, *pool, *map(address, arrays), *shape, *flags)
    else:
        room = empty_float64((3 + 2 * blocks) * at.outer * at.channels)
        shape = at.outer, blocks, at.inner, at.channels, at.together
        done = try_kernel(columns.forward, *pool, *map(address, arrays), room.data_ptr(), *shape, *flags)
        counts = (counts[: at.outer] * at.together).repeat_interleave(at.groups // at.outer)
    if not done:
        return normalize_channels_reference(x, weight, bias, real, means, squares, at, eps, centred)
    return y if wide is x else y.to(x.dtype), mean_of, square_of, counts


def _backward(
    g: Tensor,
    x: Tensor,
    weight: Tensor | None,
    real: Tensor | None,
    means: Tensor,
    squares: Tensor | None,
    numbers: Sequence[int],
    eps: float,
    centred: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of the input, the gain and the bias. `squares` only if they were known beforehand."""
    at, wide, given = ChannelLayout.from_numbers(numbers), x.float(), squares is not None
    gain = constant_vector(1.0, at.channels) if weight is None else to_contiguous_float32(weight)
    dx, blocks, pool = torch.empty_like(wide), _blocks(at), thread_pool_for(wide.numel())
    dy = match_layout(g, wide)
    dweight, dbias = empty_float32(at.channels), empty_float32(at.channels)
    arrays = wide, gain, real, dy, dx, dweight, dbias, means, squares
    shape: tuple[int, ...]
    flags = eps, centred, real is not None, given
    if at.kind == "segments":
        sums = empty_float64(2 * at.outer * at.channels)
        shape = at.groups, at.members, at.channels, at.inner, at.together, at.shared
        done = try_kernel(segments.backward, *pool, *map(address, (*arrays, sums)), *shape, *flags)
    else:
        count = empty_float64(at.outer).fill_(at.inner)
        if real is not None:
            count = real.reshape(at.outer, at.inner).sum(1).double()
        room = empty_float64(((1 + 3 * blocks) * at.outer + 2) * at.channels)
        shape = at.outer, blocks, at.inner, at.channels, at.together
        done = try_kernel(columns.backward, *pool, *map(address, (*arrays, count, room)), *shape, *flags)
    if done:
        return dx if wide is x else dx.to(x.dtype), dweight, dbias
    with torch.enable_grad():
        leaf, scale, shift = (t.detach().requires_grad_() for t in (x, gain, empty_float32(at.channels).zero_()))
        y, *_ = normalize_channels_reference(
            leaf, scale, shift, real, means if given else None, squares, at, eps, centred
        )
        dx, dweight, dbias = torch.autograd.grad(y, (leaf, scale, shift), g)
    return dx, dweight, dbias


class _Channels(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        measured: list[Tensor],  # where to leave what was measured: only the result has a gradient
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        real: Tensor | None,
        means: Tensor | None,
        squares: Tensor | None,
        *setting: Any,
    ) -> Tensor:
        y, *found = _forward(x, weight, bias, real, means, squares, *setting)
        measured.extend(found)
        ctx.save_for_backward(x, weight, real, found[0], None if squares is None else found[1])
        ctx.bias, ctx.setting = _likeness(bias), setting
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, real, means, squares = ctx.saved_tensors
        if needs_differentiable_backward(grads[0]):
            bias = None if ctx.bias is None else ctx.bias.zeros()
            return (
                None,
                *_reference_gradients(grads[0], x, weight, bias, real, means, squares, ctx.setting),
                *[None] * 6,
            )
        found = _backward(grads[0], x, weight, real, means, squares, *ctx.setting)
        return None, *_asked_for(found, weight, ctx.bias, ctx.needs_input_grad[2:4]), *[None] * 6


_apply = fast_apply(_Channels)


class _Likeness(NamedTuple):
    shape: torch.Size
    dtype: torch.dtype

    def zeros(self) -> Tensor:
        return torch.zeros(self.shape, dtype=self.dtype, device="cpu", requires_grad=True)


def _likeness(x: Tensor | None) -> _Likeness | None:
    """All that the backward pass has to know of the bias, which it therefore need not keep."""
    return None if x is None else _Likeness(x.shape, x.dtype)


def _asked_for(
    found: tuple[Tensor, Tensor, Tensor],
    weight: Tensor | None,
    bias: _Likeness | None,
    needed: Sequence[bool],
) -> list[Tensor | None]:
    """The gradients that are wanted, in the shape and type of what they are of."""
    result: list[Tensor | None] = [found[0]]
    for gradient, given, wanted in ((found[1], weight, needed[0]), (found[2], bias, needed[1])):
        if given is None or not wanted:
            result.append(None)
        elif gradient.shape == given.shape and gradient.dtype == given.dtype:
            result.append(gradient)
        else:
            result.append(gradient.reshape(given.shape).to(given.dtype))
    return result


def _blocks(at: ChannelLayout) -> int:
    """In how many blocks the rows of columns are summed: a number that depends on their number alone."""
    return max(1, min(64, at.inner // 32))


def _reference_gradients(
    g: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    real: Tensor | None,
    means: Tensor | None,
    squares: Tensor | None,
    setting: Sequence[Any],
) -> list[Tensor | None]:
    numbers, eps, centred = setting
    known = None if squares is None else means
    at = ChannelLayout.from_numbers(numbers)
    return reference_gradients(
        lambda: normalize_channels_reference(x, weight, bias, real, known, squares, at, eps, centred)[0],
        (x, weight, bias),
        g,
    )


# A graph may be called with tensors that lie in memory otherwise than those it was made with, so an operator brings
# what it is given into the order that its layout is for.
@partial(as_operator, "normscope::norm_channels")
def _operator(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    real: Tensor | None,
    means: Tensor | None,
    squares: Tensor | None,
    numbers: Sequence[int],
    eps: float,
    centred: bool,
    channels_last: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    real = None if real is None else real.contiguous()
    return _forward(_laid_out(x, channels_last), weight, bias, real, means, squares, numbers, eps, centred)


@partial(as_operator, "normscope::norm_channels_backward")
def _backward_operator(
    g: Tensor,
    x: Tensor,
    weight: Tensor | None,
    real: Tensor | None,
    means: Tensor,
    squares: Tensor | None,
    numbers: Sequence[int],
    eps: float,
    centred: bool,
    channels_last: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    real = None if real is None else real.contiguous()
    return _backward(g, _laid_out(x, channels_last), weight, real, means, squares, numbers, eps, centred)


def _laid_out(x: Tensor, channels_last: bool) -> Tensor:
    if not channels_last:
        return x.contiguous()
    return x.contiguous(memory_format=torch.channels_last if x.dim() == 4 else torch.channels_last_3d)


@_operator.register_fake
def _(x: Tensor, *given: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    groups = ChannelLayout.from_numbers(given[5]).groups
    means, squares, counts = (x.new_empty(groups, dtype=torch.float64) for _ in range(3))
    return torch.empty_like(_laid_out(x, given[-1])), means, squares, counts


@_backward_operator.register_fake
def _(g: Tensor, x: Tensor, *given: Any) -> tuple[Tensor, Tensor, Tensor]:
    channels = ChannelLayout.from_numbers(given[4]).channels
    dweight, dbias = (x.new_empty(channels, dtype=torch.float32) for _ in range(2))
    return torch.empty_like(_laid_out(x, given[-1])), dweight, dbias


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, bias, real, _, squares, *setting = inputs
    ctx.save_for_backward(x, weight, real, output[1], None if squares is None else output[2])
    ctx.bias, ctx.setting = _likeness(bias), setting


def _operator_backward(ctx: Any, g: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, real, means, squares = ctx.saved_tensors
    found = _backward_operator(g, x, weight, real, means, squares, *ctx.setting)
    return *_asked_for(found, weight, ctx.bias, ctx.needs_input_grad[1:3]), *[None] * 7


_operator.register_autograd(_operator_backward, setup_context=_setup_context)
