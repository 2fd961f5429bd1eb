"""Attention by three loops: over sentences, queries and heads. Slow, and plain to read."""

import math

import torch
from torch import Tensor

from normscope.blocks.attention import Attention


def slow_attention(attention: Attention, x: Tensor, mask: Tensor | None = None) -> Tensor:
    """What `attention` gives for x (b, s, d); rows of padding are left at zero, for no one looks there."""
    b, s, _ = x.shape
    size, group = attention.head_dim, attention.heads // attention.kv_heads
    rows = torch.zeros(b, s, attention.heads * size, dtype=x.dtype)
    for i in range(b):
        for place in range(s):
            if mask is not None and not mask[i, place]:
                continue
            for head in range(attention.heads):
                shared = head // group
                query = _prepared(attention, "q", x[i, place], head, place)
                seen = [t for t in range(s) if _visible(attention, place, t) and (mask is None or mask[i, t])]
                scale = 1 / math.sqrt(size) if attention.scale is None else attention.scale
                scores = [query @ _prepared(attention, "k", x[i, t], shared, t) * scale for t in seen]
                if attention.cap is not None:
                    scores = [attention.cap * torch.tanh(score / attention.cap) for score in scores]
                weights = [torch.exp(score) for score in scores]
                values = [_projected(attention, "v", x[i, t], shared) for t in seen]
                mixed = sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)
                rows[i, place, head * size : (head + 1) * size] = mixed
    out = rows @ attention.out.weight.T
    return out if attention.out.bias is None else out + attention.out.bias


def _visible(attention: Attention, query: int, key: int) -> bool:
    if attention.causal and key > query:
        return False
    return attention.window is None or abs(query - key) < attention.window


def _projected(attention: Attention, name: str, token: Tensor, head: int) -> Tensor:
    layer = getattr(attention, name)
    flat: Tensor = layer.weight @ token if layer.bias is None else layer.weight @ token + layer.bias
    return flat[head * attention.head_dim : (head + 1) * attention.head_dim]


def _prepared(attention: Attention, name: str, token: Tensor, head: int, place: int) -> Tensor:
    """A query or a key: projected, divided by its root mean square if there is a norm, turned if there is rotary."""
    vector = _projected(attention, name, token, head)
    if getattr(attention, f"{name}_norm") is not None:
        vector = vector / torch.sqrt(vector.square().mean() + torch.finfo(vector.dtype).eps)
    if attention.rotary is not None:
        half, rotated = attention.head_dim // 2, attention.rotary.rotary_dim // 2
        speeds = [attention.rotary.base ** (-i / rotated) if i < rotated else 0.0 for i in range(half)]
        speed = torch.tensor(speeds, dtype=vector.dtype)
        pairs = torch.complex(vector[:half], vector[half:]) * torch.polar(torch.ones_like(speed), place * speed)
        vector = torch.cat((pairs.real, pairs.imag))
    return vector
