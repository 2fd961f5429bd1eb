"""Every operation, its implementations, and the rule that chooses one of them.

| operation           | reference                   | torch                           | fused (numba)             |
|---------------------|-----------------------------|---------------------------------|---------------------------|
| norm                | mean, variance, standardize | F.layer_norm, F.rms_norm,       | over rows or channels     |
|                     |                             | F.group_norm, F.instance_norm   |                           |
| add + norm          | x + branch, then the norm   | x + branch, then the norm       | rows, in one pass         |
| norm, running stats | same, with statistics       | F.batch_norm                    | over channels             |
| attention           | -                           | F.scaled_dot_product_attention  | short sequences, in cache |
| rotary, QK-norm     | cos and sin of the halves   | -                               | in one pass               |
| activation          | F.gelu, F.silu, F.relu      | -                               | in one pass               |
| cross-entropy       | -                           | F.cross_entropy                 | loss and gradient in one  |
| moments             | torch sums in float64       | -                               | in one pass               |

The rule, in this order:
1. The implementation that NORMSCOPE_KERNELS or `use_kernels` selects, if it applies.
2. torch.func, forward-mode AD, torch.jit.trace, tensor subclasses: reference.
3. CUDA, MPS and other devices: torch where it computes the same, else reference. No GPU has run this.
4. The CPU: fused for float32, bfloat16 and float16; float64: reference.
5. In between, contiguous float32 on the CPU: torch where its call is cheaper than ours and its bits do not depend on
   the number of threads. Small means fewer than 32,768 elements.

   | norm                                     | torch                                        | bits with threads      |
   |------------------------------------------|----------------------------------------------|------------------------|
   | rows: LayerNorm, InstanceNorm of planes  | small, and no gradient of weight or bias     | theirs differ          |
   | rows of 16, 32, 48, ..., at most 2,048   | always, as a GroupNorm of one group          | equal                  |
   | elements                                 |                                              |                        |
   | GroupNorm                                | no gradient at all                           | dx differs in training |
   | BatchNorm of (n, c, ...), 2 or more      | small, or running statistics and no gradient | equal                  |
   | positions                                |                                              |                        |
   | BatchNorm of (n, c)                      | running statistics and no gradient           | differ in training     |
   | RMSNorm, masks, other memory formats     | never                                        |                        |

A choice depends on device, dtype, shape, needed gradients and instruction set, never on a timing, so that runs are
reproducible.
"""

import torch
from torch import Tensor

from normscope.ops.buffers import any_requires_grad
from normscope.ops.kernel_mode import SUPPORTED_DTYPES, Backend, forced, runs_torch_operators, select_backend
from normscope.ops.norm import memory_layout
from normscope.ops.norm.memory_layout import ChannelLayout
from normscope.ops.norm.reference import Affine
from normscope.ops.norm.statistic import Statistic
from normscope.ops.symbolic_sizes import statically_known_true
from normscope.scope import Plan


def choose_norm(x: Tensor, plan: Plan, statistic: Statistic, affine: Affine, mask: Tensor | None) -> Backend:
    """Norm with statistics of the input."""
    if not statistic.has_kernels:
        return "reference"
    backend = _fused_norm(x, affine, mask)
    if backend == "reference":
        return _torch_norm(x, affine, mask)
    if backend == "fused" and mask is None and statistic.centers and _is_plain_norm(x, affine) and forced() is None:
        if is_row_norm(plan, affine):
            row = (plan.count,) if affine.weight is None else tuple(affine.weight.shape)
            return "torch" if uses_torch_layer_norm(x, row, affine.weight, affine.bias) else backend
        layout = _contiguous_layout(plan, affine)
        if layout is not None and uses_torch_channel_norm(x, layout, affine.weight, affine.bias):
            return "torch"
    return backend


def choose_add_norm(x: Tensor, branch: Tensor, plan: Plan, statistic: Statistic, affine: Affine) -> Backend:
    """Sum of two tensors and its norm. torch has no operator for both."""
    fits = x.shape == branch.shape and x.dtype == branch.dtype == torch.float32 and statistic.has_kernels
    if not (fits and x.is_contiguous() and branch.is_contiguous() and is_row_norm(plan, affine)):
        return "reference"
    backend = _fused_norm(x, affine, branch)
    if backend == "fused" and choose_norm(x, plan, statistic, affine, None) == "torch":
        return "reference"  # an addition, and torch's norm: the same bits as without the fusion
    return backend


def choose_tracked_norm(x: Tensor, plan: Plan, statistic: Statistic, affine: Affine, mask: Tensor | None) -> Backend:
    """Norm of a layer that tracks running statistics: with those of the batch, or with the running ones."""
    if not statistic.has_kernels:
        return "reference"
    backend = _fused_norm(x, affine, mask)
    if backend == "reference" and x.dtype in (torch.float32, torch.float64):
        return _torch_norm(x, affine, mask)
    return backend


def choose_batch_norm(x: Tensor, layout: ChannelLayout, affine: Affine, training: bool) -> Backend:
    """BatchNorm of plain tensors: "torch" where F.batch_norm also updates the running statistics."""
    applied = not training and not any_requires_grad(x, affine.weight, affine.bias)
    return "torch" if applied or uses_torch_batch_norm(x, layout) else "reference"


def uses_torch_layer_norm(x: Tensor, row: tuple[int, ...], weight: Tensor | None, bias: Tensor | None) -> bool:
    """Return whether torch normalizes rows of contiguous float32 numbers."""
    return x.numel() < SMALL and (not any_requires_grad(weight, bias) or is_tiny(x.numel(), row))


def is_tiny(numbers: int, row: tuple[int, ...]) -> bool:
    """Return whether native_group_norm is fast for these rows, and its bits do not depend on the number of threads.

    They do for other rows: dx differs between one thread and two if a group is not a multiple of the vector.
    """
    return numbers <= TINY and len(row) == 1 and row[0] % 16 == 0


def uses_torch_channel_norm(x: Tensor, layout: ChannelLayout, weight: Tensor | None, bias: Tensor | None) -> bool:
    """Return whether torch normalizes channels of contiguous float32 numbers, with their own statistics."""
    if layout.across_batch:
        return uses_torch_batch_norm(x, layout)
    several = layout.memory_format == "contiguous" and layout.group_size > 1
    return several and not any_requires_grad(x, weight, bias)


def uses_torch_batch_norm(x: Tensor, layout: ChannelLayout) -> bool:
    """Return whether torch normalizes channels over a small batch of contiguous float32 numbers."""
    planes = layout.across_batch and layout.group_size == 1 and layout.spatial > 1
    return planes and layout.channels > 1 and x.numel() < SMALL


def choose_attention(q: Tensor, k: Tensor, v: Tensor, hides: bool) -> Backend:
    """Attention without a mask; `hides` means causal or windowed. The reference is torch's SDPA."""
    fits = (
        q.dtype == k.dtype == v.dtype == torch.float32
        and k.shape == v.shape
        and q.shape[1] == k.shape[1]
        and q.numel() > 0
    )
    backend = select_backend(q, k, v) if fits else "reference"
    return backend if backend != "reference" and attention_kernel_is_faster(q, k, hides, backend) else "torch"


def choose_rotary(x: Tensor, weight: Tensor | None, cos: Tensor, sin: Tensor) -> Backend:
    """Rotary embedding of (b, s, heads, e), alone or after an RMS norm with a weight."""
    fits = (
        x.dtype in SUPPORTED_DTYPES
        and (weight is None or weight.dtype in SUPPORTED_DTYPES)
        and cos.dtype == sin.dtype == torch.float32
        and cos.shape == sin.shape == (x.shape[1], 1, x.shape[3] // 2)
        and cos.is_contiguous()
        and sin.is_contiguous()
        and not (cos.requires_grad or sin.requires_grad)
        and x.shape[-1] <= MAX_HEAD_DIM
        and x.numel() > 0
    )
    return select_backend(x, weight, cos, sin) if fits else "reference"


def choose_activation(x: Tensor, up: Tensor | None) -> Backend:
    """Activation, gated if `up` is given. The reference consists of torch's own operators."""
    fits = (
        x.dtype in SUPPORTED_DTYPES and x.numel() > 0 and (up is None or (up.dtype == x.dtype and up.shape == x.shape))
    )
    return select_backend(x, up) if fits else "reference"


def choose_cross_entropy(logits: Tensor, targets: Tensor) -> Backend:
    """Mean cross-entropy of float32 logits (rows, vocab_size)."""
    fits = (
        logits.dtype == torch.float32
        and targets.dtype == torch.int64
        and logits.dim() == 2
        and targets.shape == logits.shape[:1]
        and logits.numel() > 0
    )
    backend = select_backend(logits, targets) if fits else "reference"
    return "torch" if backend == "reference" else backend


def choose_moments(x: Tensor) -> Backend:
    """Moments of all values, or statistics of columns. There is no gradient, so there is no operator."""
    return "fused" if x.dtype in SUPPORTED_DTYPES and select_backend(x) == "fused" else "reference"


MAX_HEAD_DIM = 1024
"""The largest head size that the rotary kernels support."""

MAX_TOKENS = 1024
"""The sequence length up to which the kernel is faster than torch's SDPA, for causal or windowed attention."""

_MAX_TOKENS_BIDIRECTIONAL = 256  # without masking there is less to gain
_MAX_TOKENS_PADDED = 64  # and less if the head size is not a multiple of the panel
_MIN_HEADS = 2
"""A KV head is processed by one thread, so SDPA, which parallelizes within a head, is faster for a single head. The
choice does not depend on the number of threads: SDPA rounds differently, and results must not change with threads."""


def attention_kernel_is_faster(q: Tensor, k: Tensor, hides: bool, backend: Backend) -> bool:
    """Return whether the kernel is faster than SDPA (measured)."""
    b, s, _, e = q.shape
    longest = MAX_TOKENS if hides else _MAX_TOKENS_BIDIRECTIONAL if e % 32 == 0 else _MAX_TOKENS_PADDED
    if backend == "operator":  # a graph may have symbolic lengths; use only what is known
        return statically_known_true(s <= longest)
    return max(8, e // 4) <= s <= longest and b * k.shape[2] >= _MIN_HEADS


TINY = 1 << 11
"""The number of elements up to which a GroupNorm with channels of one number is faster than our kernel (measured)."""

SMALL = 1 << 15
"""Below this number of elements the call of a kernel takes longer than its work (measured)."""


def _contiguous_layout(plan: Plan, affine: Affine) -> ChannelLayout | None:
    order = tuple(range(len(plan.split_shape)))
    return memory_layout.channel_layout(plan.split_shape, plan.roles, affine.broadcast_shape, order)


def _is_plain_norm(x: Tensor, affine: Affine) -> bool:
    return x.dtype == torch.float32 and x.dim() > 0 and x.is_contiguous() and _torch_norm_applies(x, affine)


def is_row_norm(plan: Plan, affine: Affine) -> bool:
    if affine.is_row_norm is not None:
        return affine.is_row_norm
    return memory_layout.is_row_norm(plan.split_shape, plan.roles, affine.broadcast_shape)


def _fused_norm(x: Tensor, affine: Affine, other: Tensor | None) -> Backend:
    weight, bias = affine.weight, affine.bias
    if (
        x.dtype in SUPPORTED_DTYPES
        and x.numel()
        and (weight is None or (weight.dtype in SUPPORTED_DTYPES and weight.is_contiguous()))
        and (bias is None or (bias.dtype in SUPPORTED_DTYPES and bias.is_contiguous()))
    ):
        return select_backend(x, weight, bias, other)
    return "reference"


def _torch_norm(x: Tensor, affine: Affine, mask: Tensor | None) -> Backend:
    applies = mask is None and _torch_norm_applies(x, affine)
    return "torch" if applies and runs_torch_operators(x, affine.weight, affine.bias) else "reference"


def _torch_norm_applies(x: Tensor, affine: Affine) -> bool:
    """Return whether torch's norms take these dtypes."""
    return x.numel() > 0 and all([p is None or p.dtype == x.dtype for p in (affine.weight, affine.bias)])  # noqa: C419
