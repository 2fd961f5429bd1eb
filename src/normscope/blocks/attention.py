"""Multi-head attention.

Axes: b batch, s position of a query, t position of a key, h heads, d width, e features of one head.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from normscope.blocks.cache import LayerCache, Positions, StartPosition, max_start, position_ids
from normscope.blocks.checks import check_dropout, check_mask, check_stream
from normscope.blocks.documents import Documents
from normscope.blocks.fused_norms import norm_and_rotate
from normscope.blocks.gate import Gate
from normscope.blocks.initialization import Initialization, Role
from normscope.blocks.linear import Linear
from normscope.blocks.norm.norm_spec import NormSpec, as_norm
from normscope.blocks.rotary import Rotary
from normscope.blocks.torch_tools import BaseModule, is_fx_proxy
from normscope.checks import check_flags, check_positive_int, check_positive_number
from normscope.errors import CacheError, ConfigError, ShapeError
from normscope.ops.attention import attend, attention_mask, attention_weights, capped_attention, sdpa
from normscope.ops.symbolic_sizes import statically_known_true


class Attention(BaseModule):
    r"""Multi-head attention, with optional grouped queries, rotary embeddings, QK-norm, sliding window and KV cache.

    Formula:
        y = softmax(scale q k^T + mask) v W_out,      q, k, v = x W_q, x W_k, x W_v,      scale = 1 / sqrt(e)
        with value embeddings: v = x W_v + 3 sigmoid(x[:12] W_g) u,      u: the token's value embedding, one gate a head

    Scope:
        Mixes along s. QK-norm is over the features of each head, `b s h [e]`.

    Shapes:
        x: (b, s, width). y: same as x. mask: (b, s), True at real tokens; padding is never attended to.
        values: (b, s, kv_heads * head_dim), the value embeddings.

    Args:
        width: width of the residual stream.
        heads: number of query heads.
        kv_heads: number of key and value heads, each shared by a group of query heads; None for `heads`.
        head_dim: size of a head; None for width / heads.
        causal: whether a token attends only to itself and earlier tokens.
        rotary: rotary position embedding of queries and keys.
        qk_norm: norm of the queries and keys of each head: a name, a scope or a `NormSpec`.
        window: sliding window size in tokens, the token itself included; None for no window.
        value_gate: whether the layer takes value embeddings, with a gate for each KV head.
        attention_scale: factor of the scores; None for 1 / sqrt(head_dim).
        attention_cap: soft cap of the scores, cap * tanh(scores / cap); None for no cap.
        bias: which projections have a bias: True for all, False for none, "qkv" for all but the output projection.
        init, role, depth: see `MLP`.
        dropout: dropout probability of the attention weights and of the output.
        allow_future_leak: allow qk_norm to share statistics along time in a causal layer, for experiments.

    Example:
        >>> import torch
        >>> attention = Attention(32, heads=4, kv_heads=2)
        >>> x = torch.randn(2, 5, 32)
        >>> y = attention(x)
        >>> later = x.clone()
        >>> later[:, 3:] = 0.0
        >>> torch.equal(y[:, :3], attention(later)[:, :3])  # later tokens do not change earlier outputs
        True

    Papers:
        Vaswani et al. 2017, "Attention Is All You Need"; Ainslie et al. 2023, "GQA: Training Generalized Multi-Query
        Transformer Models from Multi-Head Checkpoints"; Henry et al. 2020, "Query-Key Normalization for Transformers";
        Beltagy et al. 2020, "Longformer: The Long-Document Transformer" (the window); Gemma Team 2024, "Gemma 2:
        Improving Open Language Models at a Practical Size" (the cap); Zhou et al. 2024, "Value Residual Learning"
        (value embeddings are a later form of it).
    """

    gate_features, gate_maximum = 12, 3.0

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        causal: bool = True,
        rotary: Rotary | None = None,
        qk_norm: NormSpec | str | None = None,
        window: int | None = None,
        value_gate: bool = False,
        attention_scale: float | None = None,
        attention_cap: float | None = None,
        bias: bool | Literal["qkv"] = False,
        dropout: float = 0.0,
        init: str | Initialization = "glorot-truncated",
        role: Role = "residual",
        depth: int = 1,
        allow_future_leak: bool = False,
    ) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = check_heads(width, heads, kv_heads, head_dim)
        check_flags(causal=causal, bias=bias if bias != "qkv" else True, allow_future_leak=allow_future_leak)
        check_flags(value_gate=value_gate)
        given = {"attention_scale": attention_scale, "attention_cap": attention_cap}
        check_positive_number(**{name: value for name, value in given.items() if value is not None})
        if window is not None:
            check_positive_int(window=window)
        if rotary is not None and not isinstance(rotary, Rotary):
            raise ConfigError(f"rotary={rotary!r} must be a Rotary, or None; make one with Rotary(head_dim, context)")
        if rotary is not None and rotary.head_dim != self.head_dim:
            raise ConfigError(f"rotary has head_dim={rotary.head_dim}, but attention has head_dim={self.head_dim}")
        qk_norm = as_norm(qk_norm)
        if qk_norm is not None and causal and not allow_future_leak:
            qk_norm.check_no_future_leak("qk_norm", rank=4)
        self.causal, self.window, self.rotary = causal, window, rotary
        self.scale, self.cap = attention_scale, attention_cap
        self.q = Linear(width, self.heads * self.head_dim, bool(bias), init=init)
        self.k = Linear(width, self.kv_heads * self.head_dim, bool(bias), init=init)
        self.v = Linear(width, self.kv_heads * self.head_dim, bool(bias), init=init)
        self.value_gate = Gate(width, self.kv_heads, self.gate_features, self.gate_maximum) if value_gate else None
        self.out = Linear(self.heads * self.head_dim, width, bias is True, init=init, role=role, depth=depth)
        self.q_norm = None if qk_norm is None else qk_norm.build((None, None, self.heads, self.head_dim))
        self.k_norm = None if qk_norm is None else qk_norm.build((None, None, self.kv_heads, self.head_dim))
        self.dropout = nn.Dropout(check_dropout(dropout))

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        cache: LayerCache | None = None,
        values: Tensor | None = None,
        documents: Documents | None = None,
    ) -> Tensor:
        if is_fx_proxy(x):
            return self._fx_call(x, mask, cache, values, documents)
        x = self._check(x, mask)
        b, s, _ = x.shape
        start: Positions = 0 if documents is None else documents.positions
        if cache is not None:
            start = self._check_cache(cache, mask)
        q, k = self._query_key(x, mask, start)
        v = self._value(x, mask, values)
        if cache is not None:
            k, v = (kept.transpose(1, 2) for kept in cache.append(k.transpose(1, 2), v.transpose(1, 2)))
        if isinstance(start, Tensor):
            assert documents is not None
            y = self._attend_in_documents(q, k, v, documents)
        else:
            y = self._attend(q, k, v, start, mask, is_cached=cache is not None)
        y = y.reshape(b, s, self.heads * self.head_dim)
        out: Tensor = self.dropout(self.out(y))
        return out

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, start: StartPosition, mask: Tensor | None, *, is_cached: bool = False
    ) -> Tensor:
        s, dropout = q.shape[1], self.dropout.p if self.training else 0.0
        if self.cap is not None:
            return capped_attention(q, k, v, self._attention_mask(s, start, mask, q.device), self.cap, dropout)
        if mask is None and not is_cached and dropout == 0:
            return attend(q, k, v, causal=self.causal, window=self.window)
        # torch's causal flag is faster than a mask. It aligns the mask to the top left, so only at start 0.
        causal, attn_mask = self._plainly_causal(s, start, mask), self._visible(s, start, mask, q.device)
        return sdpa(q, k, v, attn_mask=attn_mask, causal=causal, dropout=dropout)

    def _attend_in_documents(self, q: Tensor, k: Tensor, v: Tensor, documents: Documents) -> Tensor:
        """Attend document by document: less work than with a mask, and what one computes cannot reach another."""
        q, k, v = (heads.flatten(0, 1)[None] for heads in (q, k, v))  # 1 b*s h e
        parts = [
            self._attend(q[:, start:stop], k[:, start:stop], v[:, start:stop], 0, None)
            for start, stop in documents.spans
        ]
        return torch.cat(parts, dim=1)

    def attention_weights(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the weights softmax(scale q k^T + mask) of each head, (b, heads, s, t); every row sums to 1.

        For inspection: `forward` never materializes all of them.
        """
        x = self._check(x, mask)
        q, k = self._query_key(x, mask, 0)
        return attention_weights(q, k, self._attention_mask(x.shape[1], 0, mask, x.device), self.cap)

    def _check(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Check the input; return it with zeros at padding."""
        check_stream(x, "attention")
        check_mask(mask, x, x.shape[:2])
        # An attention weight of 0 does not remove non-finite padding: 0 * inf and inf - inf are NaN.
        return x if mask is None else x.where(mask[:, :, None], 0.0)

    def _query_key(self, x: Tensor, mask: Tensor | None, start: Positions) -> tuple[Tensor, Tensor]:
        """Return queries (b, s, h, e) and keys (b, s, kv_heads, e), normalized and rotated."""
        q = norm_and_rotate(self._heads(self.q(x)), self.q_norm, self.rotary, mask, start)
        if self.scale is not None:  # attention itself divides by sqrt(e)
            q = q * (self.scale * self.head_dim**0.5)
        return q, norm_and_rotate(self._heads(self.k(x)), self.k_norm, self.rotary, mask, start)

    def _value(self, x: Tensor, mask: Tensor | None, values: Tensor | None) -> Tensor:
        """Return values (b, s, kv_heads, e), with the gated value embeddings added."""
        v = self._heads(self.v(x))
        if self.value_gate is None and values is None:
            return v
        wanted = (*x.shape[:2], self.kv_heads * self.head_dim)
        if self.value_gate is None or values is None or values.shape != wanted:
            got = "none" if values is None else tuple(values.shape)
            takes = "no value embeddings" if self.value_gate is None else f"value embeddings of shape {wanted}"
            raise ShapeError(f"this attention takes {takes}, but got {got}\nfix: see its argument value_gate")
        values = values if mask is None else values.where(mask[:, :, None], 0.0)
        return torch.addcmul(v, self.value_gate(x)[..., None], self._heads(values))

    def _heads(self, flat: Tensor) -> Tensor:
        """(b, s, h*e) -> (b, s, h, e)."""
        heads: Tensor = flat.unflatten(-1, (-1, self.head_dim))
        return heads

    def _check_cache(self, cache: LayerCache, mask: Tensor | None) -> StartPosition:
        """Check that the call can use a cache; return the position of the first new token."""
        if not isinstance(cache, LayerCache):
            raise CacheError(f"attention takes the cache of one layer, a LayerCache, but got {type(cache).__name__}")
        if not self.causal:
            raise CacheError("a KV cache requires causal attention: otherwise earlier tokens depend on later ones")
        if mask is not None:
            raise CacheError("a KV cache cannot be combined with a mask; pass the tokens without padding")
        return cache.start

    def _plainly_causal(self, s: int, start: StartPosition, mask: Tensor | None) -> bool:
        if statically_known_true(s <= 1) or start != 0 or self._is_windowed(max_start(start) + s):
            return False
        return self.causal and mask is None

    def _is_windowed(self, total: int) -> bool:
        """Return whether the window may hide some of `total` tokens."""
        return self.window is not None and not statically_known_true(total <= self.window)

    def _visible(self, s: int, start: StartPosition, mask: Tensor | None, device: torch.device) -> Tensor | None:
        """Return the attention mask, (s, t) or (b, 1, s, t); None if no mask is needed."""
        total, equal = max_start(start) + s, not isinstance(start, tuple)
        newest_only = self.causal and statically_known_true(s == 1)  # a single query at the end attends to everything
        if mask is None and equal and not self._is_windowed(total) and (not self.causal or newest_only or start == 0):
            return None
        return self._attention_mask(s, start, mask, device)

    def _attention_mask(self, s: int, start: StartPosition, mask: Tensor | None, device: torch.device) -> Tensor:
        """Return which keys each query attends to, (s, t) or (b, 1, s, t)."""
        query = position_ids(start, s, device)[..., None]
        if isinstance(start, tuple):
            query = query[:, None]  # b 1 s 1: rows have their own positions, heads share them
        key = torch.arange(max_start(start) + s, device=device)
        attn_mask = attention_mask(query, key, self.causal, self.window)
        if mask is None:
            return attn_mask
        # Every token attends to itself, so that padding rows are finite.
        return (attn_mask & mask[:, None, None, :]) | (query == key)

    def extra_repr(self) -> str:
        kv_heads = f", kv_heads={self.kv_heads}" if self.kv_heads != self.heads else ""
        window = f", window={self.window}" if self.window is not None else ""
        more = "".join(f", {name}={value}" for name in ("scale", "cap") if (value := getattr(self, name)) is not None)
        return f"heads={self.heads}{kv_heads}, head_dim={self.head_dim}, causal={self.causal}{window}{more}"


def check_heads(width: int, heads: int, kv_heads: int | None, head_dim: int | None) -> tuple[int, int, int]:
    """Check the head sizes; return (heads, kv_heads, head_dim) with defaults filled in."""
    kv_heads = heads if kv_heads is None else kv_heads
    check_positive_int(width=width, heads=heads, kv_heads=kv_heads)
    if head_dim is None:
        if width % heads:
            raise ConfigError(
                f"width={width} is not divisible by heads={heads}\nfix: change heads or width, or set head_dim"
            )
        head_dim = width // heads
    check_positive_int(head_dim=head_dim)
    if heads % kv_heads:
        raise ConfigError(f"heads={heads} is not divisible by kv_heads={kv_heads}; use a divisor of {heads}")
    return heads, kv_heads, head_dim
