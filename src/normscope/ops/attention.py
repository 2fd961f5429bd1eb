"""Scaled dot-product attention, softmax(q k^T / sqrt(e)) v, on heads in the layout of the projections.

Axes: q and y are (b, s, h, e); k and v (b, s, kv_heads, e), which groups of h / kv_heads query heads share.

`fused/attention.py` has the kernels for float32 on the CPU: one head at a time, in cache. They save only their inputs;
the backward pass recomputes the attention weights. Everything else (masks, dropout and the KV cache included) is
torch's SDPA on transposed views.
"""

from contextlib import nullcontext
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import handle_torch_function, has_torch_function

from normscope.ops import registry
from normscope.ops.buffers import addresses, empty_float32, to_contiguous_float32
from normscope.ops.cross_entropy import cap_logits
from normscope.ops.kernel_mode import is_function_transform_active
from normscope.ops.operation import Operation, Tensors, run_kernel
from normscope.ops.symbolic_sizes import statically_known_true
from normscope.ops.threads import thread_pool_for

_KEYS_PER_UNIT_OF_WORK = 8  # attending to 8 keys costs about as much as one number in an elementwise kernel


class AttentionConfig(NamedTuple):
    causal: bool
    window: int | None
    """The sliding window in tokens, the token itself included."""


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
    window = None if window is None or statically_known_true(q.shape[1] <= window) else window
    backend = registry.choose_attention(q, k, v, causal or window is not None)
    if backend == "torch":
        return _sdpa(q, k, v, causal, window)
    y: Tensor = ATTENTION(backend, AttentionConfig(causal, window), q, k, v)[0]
    return y


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
            enable_gqa=not statically_known_true(q.shape[2] == k.shape[2]),
        )
    return y.transpose(1, 2)


def attention_weights(q: Tensor, k: Tensor, attn_mask: Tensor, cap: float | None = None) -> Tensor:
    """Return the weights (b, h, s, t) of the keys (b, t, kv_heads, e), with the scores capped to +-cap.

    The softmax is at least in float32.
    """
    keys = k.repeat_interleave(q.shape[2] // k.shape[2], dim=2)
    scores = cap_logits(torch.einsum("bshe,bthe->bhst", q, keys) / q.shape[3] ** 0.5, cap)
    wide = torch.promote_types(q.dtype, torch.float32)
    return scores.masked_fill(~attn_mask, -torch.inf).softmax(dim=-1, dtype=wide).to(q.dtype)


def capped_attention(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor, cap: float, dropout: float = 0.0) -> Tensor:
    """Compute attention with soft-capped scores, which SDPA does not have; arguments as in `sdpa`."""
    weights = F.dropout(attention_weights(q, k, attn_mask, cap), dropout)
    values = v.repeat_interleave(q.shape[2] // v.shape[2], dim=2)
    return torch.einsum("bhst,bthe->bshe", weights, values)


def attention_mask(query: Tensor, key: Tensor, causal: bool, window: int | None) -> Tensor:
    """Return the boolean mask of which key positions each query position attends to."""
    attn_mask = key <= query if causal else torch.ones_like(key <= query)
    if window is not None:
        near = query - key < window
        attn_mask = attn_mask & (near if causal else near & (key - query < window))
    return attn_mask


def _sdpa(q: Tensor, k: Tensor, v: Tensor, causal: bool, window: int | None) -> Tensor:
    if window is None:
        return sdpa(q, k, v, causal=causal and not statically_known_true(q.shape[1] <= 1))
    positions = torch.arange(q.shape[1], device=q.device)
    return sdpa(q, k, v, attn_mask=attention_mask(positions[:, None], positions, causal, window))


def _sizes(config: AttentionConfig, q: Tensor, k: Tensor) -> tuple[int, ...]:
    """Return batch * kv_heads, s, kv_heads, query heads per KV head, e, and the lookback and lookahead in tokens."""
    b, s, heads, e = q.shape
    kv_heads, back = k.shape[2], s if config.window is None else min(config.window - 1, s)
    return b * kv_heads, s, kv_heads, heads // kv_heads, e, back, 0 if config.causal else back


def _run(pass_: str, config: AttentionConfig, inputs: list[Tensor], results: list[Tensor]) -> None:
    q, k = inputs[:2]
    pool = thread_pool_for(q.numel() * (1 + q.shape[1] // _KEYS_PER_UNIT_OF_WORK))
    workspace = empty_float32(pool[0] * run_kernel("attention", "workspace_size", q.shape[1], q.shape[3]))
    run_kernel("attention", pass_, pool, addresses(*inputs, *results, workspace), _sizes(config, q, k))


def _forward(config: AttentionConfig, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor]:
    inputs = [to_contiguous_float32(x) for x in (q, k, v)]
    y = torch.empty_like(inputs[0])
    _run("forward", config, inputs, [y])
    return (y,)


def _backward(config: AttentionConfig, grads: Tensors, saved: Tensors, needed: list[bool]) -> list[Tensor]:
    inputs = [to_contiguous_float32(x) for x in (*saved, *grads) if x is not None]
    results = [torch.empty_like(x) for x in inputs[:3]]
    _run("backward", config, inputs, results)
    return results


def _reference(config: AttentionConfig, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor]:
    with sdpa_kernel(SDPBackend.MATH):  # the only backend with a double backward
        return (_sdpa(q, k, v, config.causal, config.window).contiguous(),)


ATTENTION = Operation(
    "attend",
    tensors="q k v",
    config=AttentionConfig,
    forward=_forward,
    backward=_backward,
    reference=_reference,
    shapes=lambda config, q, k, v: (q.new_empty(q.shape),),
    gradient_of=(0, 1, 2),
)
