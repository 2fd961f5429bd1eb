"""Scaled dot-product attention, softmax(q k^T / sqrt(e)) v, on heads in the layout of the projections.

Axes: q and y are (b, s, h, e); k and v (b, s, kv_heads, e), which groups of h / kv_heads query heads share.

| input                                           | implementation                                        |
|-------------------------------------------------|-------------------------------------------------------|
| float32 on the CPU, where it is faster          | `fused/attention.py`: one head at a time, in cache    |
| other dtypes, devices and lengths               | torch's SDPA on transposed views                      |
| masks, dropout, KV cache                        | torch's SDPA, by `sdpa`                               |

The kernel saves only its inputs; the backward pass recomputes the attention weights. Double backward uses SDPA.
`normscope.ops.kernel_mode` decides whether kernels run at all.
"""

from contextlib import nullcontext
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import handle_torch_function, has_torch_function

from normscope.ops.buffers import (
    any_requires_grad,
    empty_float32,
    fast_apply,
    needs_differentiable_backward,
    reference_gradients,
    to_contiguous_float32,
)
from normscope.ops.kernel_mode import Backend, as_operator, is_function_transform_active, select_backend, try_kernel
from normscope.ops.symbolic_sizes import is_known
from normscope.ops.threads import ThreadPool, thread_pool_for

MAX_TOKENS = 1024
"""The sequence length up to which the kernel is faster than torch's SDPA, for causal or windowed attention."""

_MAX_TOKENS_BIDIRECTIONAL = 256  # without masking there is less to gain
_MAX_TOKENS_PADDED = 64  # and less if the head size is not a multiple of the panel
_MIN_HEADS = 2
"""A KV head is processed by one thread, so SDPA, which parallelizes within a head, is faster for a single head. The
choice does not depend on the number of threads: SDPA rounds differently, and results must not change with threads."""
_KEYS_PER_UNIT_OF_WORK = 8  # attending to 8 keys costs about as much as one number in an elementwise kernel


def attend(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, window: int | None = None) -> Tensor:
    """Compute attention, optionally causal and with a sliding window.

    The window includes the token itself, and extends in both directions unless causal.

    Example:
        >>> v = torch.arange(8.0).reshape(1, 4, 1, 2)
        >>> attend(torch.zeros(1, 4, 1, 2), torch.zeros(1, 4, 1, 2), v, causal=True)[0, :, 0, 0].tolist()  # means
        [0.0, 1.0, 2.0, 3.0]
    """
    if has_torch_function((q, k, v)):  # visible to __torch_function__ modes and subclasses
        watched: Tensor = handle_torch_function(attend, (q, k, v), q, k, v, causal=causal, window=window)
        return watched
    window = None if window is None or is_known(q.shape[1] <= window) else window
    backend = select_backend(q, k, v) if _is_supported(q, k, v) else "reference"
    if backend == "reference" or not _is_faster(q, k, causal or window is not None, backend):
        return _sdpa(q, k, v, causal, window)
    if backend == "operator":
        y = _operator(q, k, v, causal, window)
    elif any_requires_grad(q, k, v):
        y = _apply(q, k, v, causal, window)
    else:
        y = _forward(q, k, v, causal, window)
    result: Tensor = y
    return result


def sdpa(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, attn_mask: Tensor | None = None, dropout: float = 0.0
) -> Tensor:
    """Call torch's SDPA, with an optional mask (s, t) or (b, 1, s, t), dropout, and keys (b, t, kv_heads, e)."""
    with sdpa_kernel(SDPBackend.MATH) if is_function_transform_active() else nullcontext():
        y = F.scaled_dot_product_attention(
            q.transpose(1, 2),
            k.transpose(1, 2),
            v.transpose(1, 2),
            attn_mask=attn_mask,
            dropout_p=dropout,
            is_causal=causal,
            enable_gqa=not is_known(q.shape[2] == k.shape[2]),
        )
    return y.transpose(1, 2)


def attention_mask(query: Tensor, key: Tensor, causal: bool, window: int | None) -> Tensor:
    """Return the boolean mask of which key positions each query position attends to."""
    attn_mask = key <= query if causal else torch.ones_like(key <= query)
    if window is not None:
        near = query - key < window
        attn_mask = attn_mask & (near if causal else near & (key - query < window))
    return attn_mask


def _is_supported(q: Tensor, k: Tensor, v: Tensor) -> bool:
    return (
        q.dtype == k.dtype == v.dtype == torch.float32
        and k.shape == v.shape
        and q.shape[1] == k.shape[1]
        and q.numel() > 0
    )


def _is_faster(q: Tensor, k: Tensor, hides: bool, backend: Backend) -> bool:
    """Return whether the kernel is faster than SDPA (measured); `hides` means causal or windowed."""
    b, s, _, e = q.shape
    longest = MAX_TOKENS if hides else _MAX_TOKENS_BIDIRECTIONAL if e % 32 == 0 else _MAX_TOKENS_PADDED
    if backend == "operator":  # a graph may have symbolic lengths; use only what is known
        return is_known(s <= longest)
    return max(8, e // 4) <= s <= longest and b * k.shape[2] >= _MIN_HEADS


def _sdpa(q: Tensor, k: Tensor, v: Tensor, causal: bool, window: int | None) -> Tensor:
    if window is None:
        return sdpa(q, k, v, causal=causal and not is_known(q.shape[1] <= 1))
    positions = torch.arange(q.shape[1], device=q.device)
    return sdpa(q, k, v, attn_mask=attention_mask(positions[:, None], positions, causal, window))


@lru_cache
def _loops() -> Any:
    from normscope.ops.fused import attention  # imports numba, which may fail

    return attention


def _sizes(q: Tensor, k: Tensor, causal: bool, window: int | None) -> tuple[int, ...]:
    """Return batch * kv_heads, s, kv_heads, query heads per KV head, e, and the lookback and lookahead in tokens."""
    b, s, heads, e = q.shape
    kv_heads, back = k.shape[2], s if window is None else min(window - 1, s)
    return b * kv_heads, s, kv_heads, heads // kv_heads, e, back, 0 if causal else back


def _pool(q: Tensor) -> ThreadPool:
    return thread_pool_for(q.numel() * (1 + q.shape[1] // _KEYS_PER_UNIT_OF_WORK))


def _run_forward(pool: ThreadPool, inputs: list[Tensor], y: Tensor, sizes: tuple[int, ...]) -> None:
    loops = _loops()
    workspace_size = loops.forward_workspace_size(sizes[1], sizes[4])
    workspace = empty_float32(pool.threads * workspace_size)
    loops.forward(*pool, *[x.data_ptr() for x in inputs], y.data_ptr(), workspace.data_ptr(), workspace_size, *sizes)


def _run_backward(pool: ThreadPool, inputs: list[Tensor], results: list[Tensor], sizes: tuple[int, ...]) -> None:
    loops = _loops()
    workspace_size = loops.backward_workspace_size(sizes[1], sizes[4])
    workspace = empty_float32(pool.threads * workspace_size)
    loops.backward(*pool, *[x.data_ptr() for x in (*inputs, *results)], workspace.data_ptr(), workspace_size, *sizes)


def _forward(q: Tensor, k: Tensor, v: Tensor, causal: bool, window: int | None) -> Tensor:
    inputs = [to_contiguous_float32(x) for x in (q, k, v)]
    y = torch.empty_like(inputs[0])
    if try_kernel(_run_forward, _pool(q), inputs, y, _sizes(q, k, causal, window)):
        return y
    return _sdpa(q, k, v, causal, window).contiguous()


def _backward(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, causal: bool, window: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v."""
    inputs = [to_contiguous_float32(x) for x in (q, k, v, g)]
    dq, dk, dv = (torch.empty_like(x) for x in inputs[:3])
    if try_kernel(_run_backward, _pool(q), inputs, [dq, dk, dv], _sizes(q, k, causal, window)):
        return dq, dk, dv
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    dq, dk, dv = (x.detach().contiguous() for x in _gradients_by_torch(g, leaves, causal, window) if x is not None)
    return dq, dk, dv


def _gradients_by_torch(g: Tensor, inputs: list[Tensor], causal: bool, window: int | None) -> list[Tensor | None]:
    def reference() -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):  # the only backend with a double backward
            q, k, v = inputs
            return _sdpa(q, k, v, causal, window)

    return reference_gradients(reference, inputs, g)


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, causal: bool, window: int | None) -> Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.sight = causal, window
        return _forward(q, k, v, causal, window)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if needs_differentiable_backward(grads[0]):
            return *_gradients_by_torch(grads[0], list(ctx.saved_tensors), *ctx.sight), None, None
        return *_wanted(_backward(grads[0], *ctx.saved_tensors, *ctx.sight), ctx.needs_input_grad), None, None


_apply = fast_apply(_Attend)


def _wanted(found: tuple[Tensor, Tensor, Tensor], workspace_size: tuple[bool, ...]) -> list[Tensor | None]:
    return [gradient if wanted else None for gradient, wanted in zip(found, workspace_size, strict=False)]


_operator = as_operator("normscope::attend", _forward)
_backward_operator = as_operator("normscope::attend_backward", _backward)


@_operator.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, causal: bool, window: Any) -> Tensor:
    return q.new_empty(q.shape)


@_backward_operator.register_fake
def _(g: Tensor, q: Tensor, k: Tensor, v: Tensor, causal: bool, window: Any) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, causal, window = inputs
    ctx.save_for_backward(*tensors)
    ctx.sight = causal, window


def _operator_backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    return *_wanted(_backward_operator(g, *ctx.saved_tensors, *ctx.sight), ctx.needs_input_grad), None, None


_operator.register_autograd(_operator_backward, setup_context=_setup_context)
