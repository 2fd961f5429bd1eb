"""Channel norms as differentiable functions on the fused kernels: BatchNorm, InstanceNorm, GroupNorm.

`fused/channel_norm.py` has the kernels for contiguous tensors, `fused/channels_last_norm.py` those for channels-last
ones. Double backward, and everything if numba fails, uses the reference implementation.
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
from normscope.ops.fused import channel_norm as contiguous_kernels
from normscope.ops.fused import channels_last_norm as channels_last_kernels
from normscope.ops.kernel_mode import Backend, as_operator, try_kernel
from normscope.ops.memory_layout import ChannelLayout
from normscope.ops.threads import thread_pool_for


class ChannelStatistics(NamedTuple):
    """The statistics of each group of values: mean, second moment, and the number of unmasked values."""

    means: Tensor
    squares: Tensor
    counts: Tensor


def normalize(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mask: Tensor | None,
    running: tuple[Tensor, Tensor] | None,
    layout: ChannelLayout,
    eps: float,
    centered: bool,
    backend: Backend,
    channels_last: bool,
) -> tuple[Tensor, ChannelStatistics]:
    """Normalize with statistics computed from the input, or with given ones.

    Args:
        x: dense, in the memory format of the layout.
        mask: (batch, spatial), True at real positions.
        running: means and second moments to normalize with, one for each group of values.
    """
    means, squares = running or (None, None)
    given = (x, weight, bias, mask, means, squares, layout.to_ints(), eps, centered)
    if backend == "operator":
        y, *statistics = _operator(*given, channels_last)
    elif any_requires_grad(x, weight, bias):
        statistics = []
        y = _apply(statistics, *given)
    else:
        y, *statistics = _forward(*given)
    return y, ChannelStatistics(*statistics)


def _forward(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mask: Tensor | None,
    means: Tensor | None,
    squares: Tensor | None,
    layout_ints: Sequence[int],
    eps: float,
    centered: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    layout, wide, has_running = ChannelLayout.from_ints(layout_ints), x.float(), squares is not None
    gain = constant_vector(1.0, layout.channels) if weight is None else to_contiguous_float32(weight)
    shift = constant_vector(0.0, layout.channels) if bias is None else to_contiguous_float32(bias)
    y, blocks, pool = torch.empty_like(wide), _num_blocks(layout), thread_pool_for(wide.numel())
    group_means, group_squares = (empty_float64(layout.groups) if t is None else t.double().clone()
                          for t in (means, squares))  # fmt: skip
    counts = empty_float64(layout.groups if layout.memory_format == "contiguous" else layout.batch * blocks)
    arrays = wide, gain, shift, mask, y, group_means, group_squares, counts
    shape: tuple[int, ...]
    flags = eps, centered, mask is not None, has_running
    if layout.memory_format == "contiguous":
        shape = _contiguous_sizes(layout)
        done = try_kernel(contiguous_kernels.forward, *pool, *map(address, arrays), *shape, *flags)
    else:
        workspace = empty_float64((3 + 2 * blocks) * layout.batch * layout.channels)
        shape = layout.batch, blocks, layout.spatial, layout.channels, layout.group_size
        done = try_kernel(
            channels_last_kernels.forward, *pool, *map(address, arrays), workspace.data_ptr(), *shape, *flags
        )
        counts = (counts[: layout.batch] * layout.group_size).repeat_interleave(layout.groups // layout.batch)
    if not done:
        return normalize_channels_reference(x, weight, bias, mask, means, squares, layout, eps, centered)
    return y if wide is x else y.to(x.dtype), group_means, group_squares, counts


def _backward(
    g: Tensor,
    x: Tensor,
    weight: Tensor | None,
    mask: Tensor | None,
    means: Tensor,
    squares: Tensor | None,
    layout_ints: Sequence[int],
    eps: float,
    centered: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of input, gain and bias. `squares` is None unless running statistics were used."""
    layout, wide, has_running = ChannelLayout.from_ints(layout_ints), x.float(), squares is not None
    gain = constant_vector(1.0, layout.channels) if weight is None else to_contiguous_float32(weight)
    dx, blocks, pool = torch.empty_like(wide), _num_blocks(layout), thread_pool_for(wide.numel())
    dy = match_layout(g, wide)
    dweight, dbias = empty_float32(layout.channels), empty_float32(layout.channels)
    arrays = wide, gain, mask, dy, dx, dweight, dbias, means, squares
    shape: tuple[int, ...]
    flags = eps, centered, mask is not None, has_running
    if layout.memory_format == "contiguous":
        sums = empty_float64(2 * layout.batch * layout.channels)
        shape = _contiguous_sizes(layout)
        done = try_kernel(contiguous_kernels.backward, *pool, *map(address, (*arrays, sums)), *shape, *flags)
    else:
        count = empty_float64(layout.batch).fill_(layout.spatial)
        if mask is not None:
            count = mask.reshape(layout.batch, layout.spatial).sum(1).double()
        workspace = empty_float64(((1 + 3 * blocks) * layout.batch + 2) * layout.channels)
        shape = layout.batch, blocks, layout.spatial, layout.channels, layout.group_size
        done = try_kernel(
            channels_last_kernels.backward, *pool, *map(address, (*arrays, count, workspace)), *shape, *flags
        )
    if done:
        return dx if wide is x else dx.to(x.dtype), dweight, dbias
    with torch.enable_grad():
        leaf, scale, shift = (t.detach().requires_grad_() for t in (x, gain, empty_float32(layout.channels).zero_()))
        y, *_ = normalize_channels_reference(
            leaf, scale, shift, mask, means if has_running else None, squares, layout, eps, centered
        )
        dx, dweight, dbias = torch.autograd.grad(y, (leaf, scale, shift), g)
    return dx, dweight, dbias


class _ChannelNormFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        statistics: list[Tensor],  # filled with the statistics, which have no gradient
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mask: Tensor | None,
        means: Tensor | None,
        squares: Tensor | None,
        *setting: Any,
    ) -> Tensor:
        y, *found = _forward(x, weight, bias, mask, means, squares, *setting)
        statistics.extend(found)
        ctx.save_for_backward(x, weight, mask, found[0], None if squares is None else found[1])
        ctx.bias, ctx.setting = _tensor_meta(bias), setting
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mask, means, squares = ctx.saved_tensors
        if needs_differentiable_backward(grads[0]):
            bias = None if ctx.bias is None else ctx.bias.zeros()
            return (
                None,
                *_reference_gradients(grads[0], x, weight, bias, mask, means, squares, ctx.setting),
                *[None] * 6,
            )
        found = _backward(grads[0], x, weight, mask, means, squares, *ctx.setting)
        return None, *_needed_gradients(found, weight, ctx.bias, ctx.needs_input_grad[2:4]), *[None] * 6


_apply = fast_apply(_ChannelNormFunction)


class _TensorMeta(NamedTuple):
    shape: torch.Size
    dtype: torch.dtype

    def zeros(self) -> Tensor:
        return torch.zeros(self.shape, dtype=self.dtype, device="cpu", requires_grad=True)


def _tensor_meta(x: Tensor | None) -> _TensorMeta | None:
    """Return what the backward pass needs to know of the bias, so that the bias need not be saved."""
    return None if x is None else _TensorMeta(x.shape, x.dtype)


def _needed_gradients(
    found: tuple[Tensor, Tensor, Tensor],
    weight: Tensor | None,
    bias: _TensorMeta | None,
    needed: Sequence[bool],
) -> list[Tensor | None]:
    """Return the needed gradients, in the shape and dtype of their parameters."""
    result: list[Tensor | None] = [found[0]]
    for gradient, given, wanted in ((found[1], weight, needed[0]), (found[2], bias, needed[1])):
        if given is None or not wanted:
            result.append(None)
        elif gradient.shape == given.shape and gradient.dtype == given.dtype:
            result.append(gradient)
        else:
            result.append(gradient.reshape(given.shape).to(given.dtype))
    return result


def _contiguous_sizes(layout: ChannelLayout) -> tuple[int, ...]:
    planes, channels = layout.planes_per_group, layout.channels
    return layout.groups, planes, channels, layout.spatial, layout.group_size, layout.across_batch


def _num_blocks(layout: ChannelLayout) -> int:
    """Return the number of blocks for summation. It depends on the size alone, so results are deterministic."""
    return max(1, min(64, layout.spatial // 32))


def _reference_gradients(
    g: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mask: Tensor | None,
    means: Tensor | None,
    squares: Tensor | None,
    setting: Sequence[Any],
) -> list[Tensor | None]:
    layout_ints, eps, centered = setting
    running = None if squares is None else means
    layout = ChannelLayout.from_ints(layout_ints)
    return reference_gradients(
        lambda: normalize_channels_reference(x, weight, bias, mask, running, squares, layout, eps, centered)[0],
        (x, weight, bias),
        g,
    )


# A graph may be called with other strides than it was traced with, so an operator first converts its input to the
# memory format of its layout.
@partial(as_operator, "normscope::norm_channels")
def _operator(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mask: Tensor | None,
    means: Tensor | None,
    squares: Tensor | None,
    layout_ints: Sequence[int],
    eps: float,
    centered: bool,
    channels_last: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    mask = None if mask is None else mask.contiguous()
    return _forward(_to_memory_format(x, channels_last), weight, bias, mask, means, squares, layout_ints, eps, centered)


@partial(as_operator, "normscope::norm_channels_backward")
def _backward_operator(
    g: Tensor,
    x: Tensor,
    weight: Tensor | None,
    mask: Tensor | None,
    means: Tensor,
    squares: Tensor | None,
    layout_ints: Sequence[int],
    eps: float,
    centered: bool,
    channels_last: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    mask = None if mask is None else mask.contiguous()
    return _backward(g, _to_memory_format(x, channels_last), weight, mask, means, squares, layout_ints, eps, centered)


def _to_memory_format(x: Tensor, channels_last: bool) -> Tensor:
    if not channels_last:
        return x.contiguous()
    return x.contiguous(memory_format=torch.channels_last if x.dim() == 4 else torch.channels_last_3d)


@_operator.register_fake
def _(x: Tensor, *given: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    groups = ChannelLayout.from_ints(given[5]).groups
    means, squares, counts = (x.new_empty(groups, dtype=torch.float64) for _ in range(3))
    return torch.empty_like(_to_memory_format(x, given[-1])), means, squares, counts


@_backward_operator.register_fake
def _(g: Tensor, x: Tensor, *given: Any) -> tuple[Tensor, Tensor, Tensor]:
    channels = ChannelLayout.from_ints(given[4]).channels
    dweight, dbias = (x.new_empty(channels, dtype=torch.float32) for _ in range(2))
    return torch.empty_like(_to_memory_format(x, given[-1])), dweight, dbias


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, bias, mask, _, squares, *setting = inputs
    ctx.save_for_backward(x, weight, mask, output[1], None if squares is None else output[2])
    ctx.bias, ctx.setting = _tensor_meta(bias), setting


def _operator_backward(ctx: Any, g: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, mask, means, squares = ctx.saved_tensors
    found = _backward_operator(g, x, weight, mask, means, squares, *ctx.setting)
    return *_needed_gradients(found, weight, ctx.bias, ctx.needs_input_grad[1:3]), *[None] * 7


_operator.register_autograd(_operator_backward, setup_context=_setup_context)
