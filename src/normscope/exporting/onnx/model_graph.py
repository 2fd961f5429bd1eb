"""A GPT as an ONNX graph.

| inputs                            | shape                                 |
|-----------------------------------|---------------------------------------|
| input_ids                         | (batch, length), int64                |
| past_key_values.I.key, ...value   | (batch, kv_heads, past, head_dim)     |
| past_input_ids, with smear        | (batch, past), int64                  |

| outputs                           | shape                                 |
|-----------------------------------|---------------------------------------|
| logits                            | (batch, length, vocab_size)           |
| present.I.key, present.I.value    | (batch, kv_heads, past + length, ...) |
| present_input_ids, with smear     | (batch, past + length), int64         |

Without earlier tokens `past` is 0. The rows of a batch have the same length.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from normscope.blocks.block import Block
from normscope.blocks.mix import Mix
from normscope.blocks.residual import get_wiring
from normscope.errors import ConfigError
from normscope.exporting.onnx.attention import AttentionGraph
from normscope.exporting.onnx.graph import Graph, Value
from normscope.exporting.onnx.layers import ACTIVATIONS, GATES, check_norm, gate, linear, mix, mlp, norm
from normscope.models.gpt import GPT


def check_model(model: GPT) -> None:
    """Raise a ConfigError if a graph cannot represent the model."""
    if model.config.activation not in {*ACTIVATIONS, *GATES}:
        raise ConfigError(
            f"an ONNX graph cannot represent activation={model.config.activation!r}\n"
            f"fix: train another model, such as --preset llama"
        )
    block = model.blocks[0]
    assert isinstance(block, Block)
    check_norm("qk_norm", block.attention.q_norm)
    for one in (*block.norms, model.embedding_norm):
        check_norm("norm", one)


def onnx_graph(model: GPT) -> Graph:
    """Return the graph of a model that passes `check_model`."""
    graph = Graph()
    _ModelGraph(graph, model).build()
    return graph


def embedding_scale(model: GPT) -> float:
    """The factor of the embedding as the model computes with it: rounded to the dtype of the stored weights."""
    return float(torch.tensor(model.config.embedding_scale, dtype=model.embedding.weight.dtype))


@dataclass
class _GraphNorm:
    """A norm for a residual wiring: see `normscope.blocks.residual.MaskedNorm`."""

    apply: Callable[[Value], Value]

    def __call__(self, x: Value) -> Value:
        return self.apply(x)

    def without_padding(self, x: Value) -> Value:
        return x

    def add_and_normalize(self, x: Value, branch: Value) -> tuple[Value, Value]:
        joined = x + branch
        return joined, self.apply(joined)


class _ModelGraph:
    def __init__(self, graph: Graph, model: GPT) -> None:
        self.graph, self.model, self.config = graph, model, model.config

    def build(self) -> None:
        config, graph, model = self.config, self.graph, self.model
        tokens = graph.input("input_ids", "INT64", ["batch", "length"])
        _, kv_heads, head_dim = config.head_sizes
        cache_shape: list[int | str] = ["batch", kv_heads, "past", head_dim]
        past = [
            [graph.input(f"past_key_values.{i}.{part}", "FLOAT", cache_shape) for part in ("key", "value")]
            for i in range(config.depth)
        ]
        self.start, self.length = past[0][0].size(2), tokens.size(1)
        self.attention = AttentionGraph(graph, config, self.start, self.length)
        self.table = graph.weight("embedding.weight", model.embedding.weight)
        known = None
        if config.smear:
            known = graph.concat(graph.input("past_input_ids", "INT64", ["batch", "past"]), tokens, axis=1)
        x = embedding = self._embed(tokens, self.attention.positions) if known is None else self._smeared(known)
        middle = x
        for i, block in enumerate(model.blocks):
            assert isinstance(block, Block)
            if config.embedding_mix:
                own = model.embedding_mixes[i]
                assert isinstance(own, Mix)
                x = mix(f"embedding_mixes.{i}", own, x, embedding)
            x = self._block(i, block, past[i], self._value_embeddings(i, tokens), x)
            middle = x if i == len(model.blocks) // 2 else middle
        if model.backout is not None:
            x = mix("backout", model.backout, x, middle)
        x = norm("final_norm", model.final_norm, x, (config.width,))
        logits = x @ self.table.transpose(1, 0) if model.head is None else linear("head", model.head, x)
        if config.logit_cap is not None:
            logits = (logits / config.logit_cap).apply("Tanh") * config.logit_cap
        graph.output(logits, "logits", ["batch", "length", config.vocab_size])
        graph.outputs.insert(0, graph.outputs.pop())  # the first output, before those of the cache
        if known is not None:
            graph.output(known, "present_input_ids", ["batch", "total"], "INT64")

    def _embed(self, tokens: Value, positions: Value) -> Value:
        """Return the embedding of each token by itself."""
        x, scale = self.table.gather(tokens), embedding_scale(self.model)
        x = x if scale == 1 else x * scale
        if self.model.position is not None:
            x = x + self.graph.weight("position.weight", self.model.position.weight).gather(positions)
        return norm("embedding_norm", self.model.embedding_norm, x, (self.config.width,))

    def _smeared(self, known: Value) -> Value:
        """Return the embedding of each new token, to which a part of the previous token's is added.

        `known` are the ids of cached and new tokens. The last cached one is embedded with the new ones.
        """
        graph, smear = self.graph, self.model.smear
        assert smear is not None
        first = graph.node("Max", self.start - 1, [0])
        stop = self.start + self.length
        embedded = self._embed(known.slice(first, stop, 1), graph.range(first, stop))
        # The first token of a text has zeros before it.
        missing = self.length + 1 - (stop - first)
        shape = graph.concat(known.size(0), missing, [self.config.width], axis=0)
        previous = graph.concat(graph.node("ConstantOfShape", shape), embedded.slice(0, -1, 1), axis=1)
        x = embedded.slice(self.length * -1, stop, 1)
        return x + gate("smear.gate", smear.gate, x) * graph.weight("smear.scale", smear.scale) * previous

    def _value_embeddings(self, i: int, tokens: Value) -> Value | None:
        if i not in self.config.value_layers:
            return None
        name = f"value_embeddings.{i}.weight"
        return self.graph.weight(name, self.model.get_parameter(name)).gather(tokens)

    def _block(self, i: int, block: Block, past: Sequence[Value], values: Value | None, x: Value) -> Value:
        width, name = (self.config.width,), f"blocks.{i}"
        norms = [
            _GraphNorm(partial(norm, f"{name}.norms.{k}", layer, sizes=width)) for k, layer in enumerate(block.norms)
        ]
        attention = partial(self.attention.attend, f"{name}.attention", i, block.attention, past, values)
        branches = attention, partial(mlp, f"{name}.mlp", block.mlp)
        return get_wiring(self.config.wiring).join(x, *branches, norms)  # type: ignore[arg-type, return-value]  # symbolic values, not tensors
