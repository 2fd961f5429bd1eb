"""A GPT as an ONNX graph.

| inputs                              | shape                                 |
|-------------------------------------|---------------------------------------|
| input_ids                           | (batch, length), int64                |
| past_key_values.I.key, ...value     | (batch, kv_heads, past, head_dim)     |

| outputs                             | shape                                 |
|-------------------------------------|---------------------------------------|
| logits                              | (batch, length, vocab_size)           |
| present.I.key, present.I.value      | (batch, kv_heads, past + length, ...) |

Without earlier tokens `past` is 0. The rows of a batch have the same length.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from normscope.blocks.block import Block
from normscope.blocks.linear import Linear
from normscope.blocks.norm.base import Norm
from normscope.blocks.residual import get_wiring
from normscope.exporting.html_support import NormTable, norm_tables
from normscope.exporting.onnx.graph import Graph, Value
from normscope.models.gpt import GPT

_HIDDEN = -1e30
"""The score of a token that is not attended to; not -inf, because a window may hide a whole row for some runtimes."""


def onnx_graph(model: GPT) -> Graph:
    """Return the graph of a model."""
    graph = Graph()
    builder = _ModelGraph(graph, model)
    builder.build()
    return graph


@dataclass
class _GraphNorm:
    """A norm for a residual wiring: see `normscope.blocks.residual.MaskedNorm`."""

    apply: Callable[[Value], Value]

    def __call__(self, x: Value) -> Value:
        return self.apply(x)

    def add_and_normalize(self, x: Value, branch: Value) -> tuple[Value, Value]:
        joined = x + branch
        return joined, self.apply(joined)


class _ModelGraph:
    def __init__(self, graph: Graph, model: GPT) -> None:
        self.graph, self.model, self.config = graph, model, model.config
        tables = norm_tables(model)
        self.norm_table, self.qk_table = tables["norm"], tables["qk_norm"]
        self.heads, self.kv_heads, self.head_dim = model.config.head_sizes

    def build(self) -> None:
        config, graph = self.config, self.graph
        tokens = graph.input("input_ids", "INT64", ["batch", "length"])
        cache_shape: list[int | str] = ["batch", self.kv_heads, "past", self.head_dim]
        self.past = [
            tuple(graph.input(f"past_key_values.{i}.{part}", "FLOAT", cache_shape) for part in ("key", "value"))
            for i in range(config.depth)
        ]
        self.batch, self.length = tokens.size(0), tokens.size(1)
        start = self.past[0][0].size(2)
        stop = start + self.length
        one = graph.constant(1)
        self.positions = graph.node("Range", _scalar(start), _scalar(stop), one)
        keys = graph.node("Range", graph.constant(0), _scalar(stop), one)
        self.hidden = self._hidden_keys(keys)
        table = self._weight("embedding.weight", self.model.embedding.weight)
        x = table.gather(tokens)
        if self.model.position is not None:
            x = x + self._weight("position.weight", self.model.position.weight).gather(self.positions)
        if config.positions == "rotary":
            self.cos, self.sin = self._rotary_tables()
        if config.embedding_norm:
            x = self._norm("embedding_norm", self.model.embedding_norm, self.norm_table, config.width)(x)
        join = get_wiring(config.wiring).join
        for i, block in enumerate(self.model.blocks):
            assert isinstance(block, Block)
            name = f"blocks.{i}"
            norms = [
                _GraphNorm(self._norm(f"{name}.norms.{k}", norm, self.norm_table, config.width))
                for k, norm in enumerate(block.norms)
            ]
            attention, mlp = partial(self._attention, i, block), partial(self._mlp, i, block)
            x = join(x, attention, mlp, norms)  # type: ignore[arg-type, assignment]  # symbolic values, not tensors
        x = self._norm("final_norm", self.model.final_norm, self.norm_table, config.width)(x)
        logits = (
            x @ graph.node("Transpose", table, perm=[1, 0])
            if self.model.head is None
            else self._linear("head", self.model.head, x)
        )
        if config.logit_cap is not None:
            logits = (logits / config.logit_cap).apply("Tanh") * config.logit_cap
        graph.output(logits, "logits", ["batch", "length", config.vocab_size])
        graph.outputs.insert(0, graph.outputs.pop())  # the first output, before those of the cache

    def _hidden_keys(self, keys: Value) -> Value:
        """Return which keys (t) each query (s) does not see, (s, t)."""
        graph = self.graph
        query = self.positions.reshape(-1, 1)
        hidden = graph.node("Greater", keys, query)
        if self.config.window is None:
            return hidden
        return graph.node("Or", hidden, graph.node("LessOrEqual", keys, query - self.config.window))

    def _rotary_tables(self) -> tuple[Value, Value]:
        rotary = self.model.blocks[0].attention.rotary  # type: ignore[union-attr]
        tables = ((name, getattr(rotary, name)[:, 0]) for name in ("cos", "sin"))
        cos, sin = (self._weight(f"rotary.{name}", table).gather(self.positions) for name, table in tables)
        return cos.reshape(-1, 1, self.head_dim // 2), sin.reshape(-1, 1, self.head_dim // 2)

    def _attention(self, i: int, block: Block, x: Value) -> Value:
        graph, layer, name = self.graph, block.attention, f"blocks.{i}.attention"
        q = self._query_or_key(f"{name}.q", layer.q, layer.q_norm, x, self.heads)
        k = self._query_or_key(f"{name}.k", layer.k, layer.k_norm, x, self.kv_heads)
        v = self._linear(f"{name}.v", layer.v, x).reshape(0, 0, self.kv_heads, self.head_dim)
        past_k, past_v = self.past[i]
        k = graph.node("Concat", past_k, k.transpose(0, 2, 1, 3), axis=2)
        v = graph.node("Concat", past_v, v.transpose(0, 2, 1, 3), axis=2)
        for part, value in (("key", k), ("value", v)):
            graph.output(value, f"present.{i}.{part}", ["batch", self.kv_heads, "total", self.head_dim])
        # Query heads that share keys are an axis of their own: b kv_heads group s e.
        q = q.transpose(0, 2, 1, 3).reshape(0, self.kv_heads, self.heads // self.kv_heads, self.length, self.head_dim)
        k, v = (graph.node("Unsqueeze", one, [2]) for one in (k, v))
        scores = q @ k.transpose(0, 1, 2, 4, 3) / math.sqrt(self.head_dim)
        weights = graph.node("Where", self.hidden, _HIDDEN, scores).apply("Softmax", axis=-1)
        y = (weights @ v).reshape(0, self.heads, self.length, self.head_dim).transpose(0, 2, 1, 3)
        return self._linear(f"{name}.out", layer.out, y.reshape(0, 0, self.heads * self.head_dim))

    def _query_or_key(self, name: str, layer: Linear, norm: Any, x: Value, heads: int) -> Value:
        """Return queries or keys, (b, s, heads, e)."""
        flat = self._norm(f"{name}_norm", norm, self.qk_table, heads * self.head_dim)(self._linear(name, layer, x))
        value = flat.reshape(0, 0, heads, self.head_dim)
        if self.config.positions != "rotary":
            return value
        half = self.head_dim // 2
        a, b = value.slice(0, half, -1), value.slice(half, self.head_dim, -1)
        first, second = a * self.cos - b * self.sin, a * self.sin + b * self.cos
        return self.graph.node("Concat", first, second, axis=-1)

    def _mlp(self, i: int, block: Block, x: Value) -> Value:
        layer, name = block.mlp, f"blocks.{i}.mlp"
        up = self._linear(f"{name}.up", layer.up, x)
        if layer.gate is None:
            hidden = ACTIVATIONS[self.config.activation](up)
        else:
            hidden = ACTIVATIONS[GATES[self.config.activation]](self._linear(f"{name}.gate", layer.gate, x)) * up
        return self._linear(f"{name}.down", layer.down, hidden)

    def _linear(self, name: str, layer: Linear, x: Value) -> Value:
        y = x @ self._weight(f"{name}.weight", layer.weight.t())
        return y if layer.bias is None else y + self._weight(f"{name}.bias", layer.bias)

    def _norm(self, name: str, norm: Any, table: NormTable | None, size: int) -> Callable[[Value], Value]:
        if not isinstance(norm, Norm) or table is None:
            return lambda x: x
        gain, bias = (self._along(f"{name}.{part}", getattr(norm, part, None), size) for part in ("weight", "bias"))

        def apply(x: Value) -> Value:
            y = x if table["group"] == size else x.reshape(0, 0, -1, table["group"])
            y = y - y.mean() if table["centers"] else y
            y = y / ((y * y).mean() + float(table["eps"])).apply("Sqrt")
            y = y if table["group"] == size else y.reshape(0, 0, size)
            y = y if gain is None else y * gain
            return y if bias is None else y + bias

        return apply

    def _along(self, name: str, parameter: Tensor | None, size: int) -> Value | None:
        """A parameter of a norm for each of `size` features: it may be shared by groups or heads."""
        if parameter is None:
            return None
        return self._weight(name, parameter.reshape(-1).repeat(size // parameter.numel()))

    def _weight(self, name: str, tensor: Tensor) -> Value:
        return self.graph.weight(name, tensor.detach().float().numpy().astype(np.float32))


def _scalar(value: Value) -> Value:
    return value.graph.node("Squeeze", value, [0])


def _gelu(x: Value) -> Value:
    return x * ((x / math.sqrt(2)).apply("Erf") + 1.0) * 0.5


def _gelu_tanh(x: Value) -> Value:
    inner = (x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)
    return x * (inner.apply("Tanh") + 1.0) * 0.5


def _relu2(x: Value) -> Value:
    positive = x.apply("Relu")
    return positive * positive


ACTIVATIONS: dict[str, Callable[[Value], Value]] = {
    "relu2": _relu2,
    "relu": lambda x: x.apply("Relu"),
    "gelu": _gelu,
    "gelu-tanh": _gelu_tanh,
    "silu": lambda x: x * x.apply("Sigmoid"),
}
GATES = {"swiglu": "silu", "reglu": "relu", "geglu": "gelu"}
"""The activation of the gate of each gated activation."""
