"""Attention as nodes of an ONNX graph.

Axes: b batch, s position of a query, t position of a key, h heads, e features of one head.
"""

import math
from collections.abc import Sequence
from functools import cache, partial

import numpy as np

from normscope.blocks.attention import Attention
from normscope.blocks.linear import Linear
from normscope.blocks.norm.base import Norm
from normscope.blocks.rotary import Frequencies, Rotary
from normscope.exporting.onnx.graph import Graph, Value
from normscope.exporting.onnx.layers import gate, linear, norm
from normscope.models.gpt_config import GPTConfig

_HIDDEN = float(np.finfo(np.float32).min)
"""The score of a token that is not attended to; not -inf, from which some runtimes compute NaN."""


class AttentionGraph:
    """What the attention layers of a model have in common: the new tokens' positions, tables and masks.

    Args:
        graph: the graph.
        config: the model's config.
        start: number of cached tokens, of shape (1,).
        length: number of new tokens, of shape (1,).
    """

    def __init__(self, graph: Graph, config: GPTConfig, start: Value, length: Value) -> None:
        self.graph, self.config, self.length = graph, config, length
        self.heads, self.kv_heads, self.head_dim = config.head_sizes
        self.positions = graph.range(start, start + length)
        self.keys = graph.range(0, start + length)
        # Layers share the mask of a window, and the tables of a rotary embedding.
        self.hidden_keys = cache(self._hidden_keys)
        self.rotary_tables = cache(self._rotary_tables)

    def attend(
        self, name: str, i: int, layer: Attention, past: Sequence[Value], values: Value | None, x: Value
    ) -> Value:
        """Attend from x to itself and the cache `past`; write the new cache of block i to the outputs."""
        graph, frequencies = self.graph, self.config.rotary_of_layers(i + 1)[i]
        heads = partial(self._query_or_key, x=x, frequencies=frequencies)
        q = heads(f"{name}.q", layer.q, layer.q_norm, self.heads)
        k = heads(f"{name}.k", layer.k, layer.k_norm, self.kv_heads)
        v = self._value(name, layer, values, x)
        k = graph.concat(past[0], k.transpose(0, 2, 1, 3), axis=2)  # b kv_heads t e
        v = graph.concat(past[1], v.transpose(0, 2, 1, 3), axis=2)
        for part, value in (("key", k), ("value", v)):
            graph.output(value, f"present.{i}.{part}", ["batch", self.kv_heads, "total", self.head_dim])
        # Query heads that share keys are an axis of their own: b kv_heads group s e.
        q = q.transpose(0, 2, 1, 3).reshape(0, self.kv_heads, self.heads // self.kv_heads, self.length, self.head_dim)
        k, v = (graph.node("Unsqueeze", one, [2]) for one in (k, v))
        scores = q @ k.transpose(0, 1, 2, 4, 3) * (1 / math.sqrt(self.head_dim) if layer.scale is None else layer.scale)
        if layer.cap is not None:
            scores = (scores / layer.cap).apply("Tanh") * layer.cap
        weights = graph.node("Where", self.hidden_keys(layer.window), _HIDDEN, scores).apply("Softmax", axis=-1)
        y = (weights @ v).reshape(0, self.heads, self.length, self.head_dim).transpose(0, 2, 1, 3)
        return linear(f"{name}.out", layer.out, y.reshape(0, 0, self.heads * self.head_dim))

    def _query_or_key(
        self, name: str, layer: Linear, qk_norm: Norm | None, heads: int, *, x: Value, frequencies: Frequencies | None
    ) -> Value:
        """Return queries or keys, (b, s, heads, e), normalized and rotated."""
        value = linear(name, layer, x).reshape(0, 0, heads, self.head_dim)
        value = norm(f"{name}_norm", qk_norm, value, (heads, self.head_dim))
        if frequencies is None:
            return value
        cos, sin = self.rotary_tables(frequencies)
        half = self.head_dim // 2
        a, b = value.slice(0, half, -1), value.slice(half, self.head_dim, -1)
        return self.graph.concat(a * cos - b * sin, a * sin + b * cos, axis=-1)

    def _value(self, name: str, layer: Attention, values: Value | None, x: Value) -> Value:
        """Return values, (b, s, kv_heads, e), with the gated value embeddings added."""
        v = linear(f"{name}.v", layer.v, x).reshape(0, 0, self.kv_heads, self.head_dim)
        if layer.value_gate is None or values is None:
            return v
        opened = gate(f"{name}.value_gate", layer.value_gate, x).reshape(0, 0, self.kv_heads, 1)
        return v + opened * values.reshape(0, 0, self.kv_heads, self.head_dim)

    def _hidden_keys(self, window: int | None) -> Value:
        """Return which keys each query does not see, (s, t)."""
        query = self.positions.reshape(-1, 1)
        hidden = self.graph.node("Greater", self.keys, query)
        if window is None:
            return hidden
        return self.graph.node("Or", hidden, self.graph.node("LessOrEqual", self.keys, query - window))

    def _rotary_tables(self, frequencies: Frequencies) -> tuple[Value, Value]:
        """Return cos and sin of the new tokens, (s, 1, e / 2)."""
        config, (base, scaling) = self.config, frequencies
        rotary = Rotary(self.head_dim, config.context, base, rotary_dim=config.rotary_dim, scaling=scaling)
        name = f"rotary.{self.rotary_tables.cache_info().currsize}"
        cos, sin = (self.graph.weight(f"{name}.{part}", getattr(rotary, part)) for part in ("cos", "sin"))
        return cos.gather(self.positions), sin.gather(self.positions)
