"""The table of known mistakes of conversions: what a model becomes with each of them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any

import torch
from torch import Tensor

from normscope.blocks.activations import ACTIVATIONS
from normscope.blocks.norm.norm_spec import NormSpec
from normscope.models.gpt import GPTConfig

Weights = Mapping[str, Tensor]
Changed = tuple[str, GPTConfig, Weights]
"""A mistake in words, and the model that has it."""


def mistakes(config: GPTConfig, weights: Weights) -> Iterator[Changed]:
    """The model with each of the known mistakes that apply to it."""
    for family in (
        _settings,
        _special_settings,
        _norms,
        _exchanged_norms,
        _queries_and_keys,
        _attention,
        _tables,
        _vectors,
        _matrices,
    ):
        yield from family(config, weights)


def _with(config: GPTConfig, **settings: Any) -> GPTConfig:
    return replace(config, **settings)


def _settings(config: GPTConfig, weights: Weights) -> Iterator[Changed]:
    gated = ACTIVATIONS[config.activation].gated
    for name, activation in ACTIVATIONS.items():
        if activation.gated == gated and name != config.activation:
            yield f"the activation is {name} instead of {config.activation}", _with(config, activation=name), weights
    if config.positions == "rotary":
        for base in dict.fromkeys((1e4, 1e5, 5e5, 1e6, *(config.rotary_base * by for by in (0.1, 0.5, 2.0, 10.0)))):
            if base != config.rotary_base:
                text = f"the base of the rotary embedding is {base:g} instead of {config.rotary_base:g}"
                yield text, _with(config, rotary_base=base), weights
        yield "the rotary embedding is missing", _with(config, positions="none"), weights
    for cap in (None, 15.0, 30.0):
        if cap != config.logit_cap:
            text = f"the soft cap of the logits is {cap or 'none'} instead of {config.logit_cap or 'none'}"
            yield text, _with(config, logit_cap=cap), weights
    for window in () if config.window is None else (None, config.window - 1, config.window + 1):
        if window != 0:
            pattern = "S" if window is None else config.window_pattern
            changed = _with(config, window=window, window_pattern=pattern)
            yield f"the sliding window is {window or 'none'}", changed, weights


def _special_settings(config: GPTConfig, weights: Weights) -> Iterator[Changed]:
    """Settings that few models have, and that a converter may not know."""
    for field, default, text in (
        ("rotary_scaling", None, "the scaling of the rotary frequencies is missing"),
        ("rotary_dim", None, "all features of a head are rotated"),
        ("rotary_pattern", "R", "all blocks have the same rotary embedding"),
        ("local_rotary_base", None, "blocks with a window have the rotary base of the others"),
        ("window_pattern", "S", "all blocks have the sliding window"),
        ("attention_scale", None, "the attention is scaled by the root of the head dimension"),
        ("attention_cap", None, "the soft cap of the attention is missing"),
    ):
        if getattr(config, field) != default:
            yield text, _with(config, **{field: default}), weights


def _norms(config: GPTConfig, weights: Weights) -> Iterator[Changed]:
    for field, what in (("norm", "the norms"), ("qk_norm", "the norms of queries and keys")):
        norm = getattr(config, field)
        if isinstance(norm, NormSpec):
            for eps in (None, 1e-3, 1e-5, 1e-6, 1e-8, 1e-12):
                if eps != norm.eps:
                    shown = ["2^-23" if value is None else f"{value:g}" for value in (eps, norm.eps)]
                    text = f"eps of {what} is {shown[0]} instead of {shown[1]}"
                    yield text, _with(config, **{field: replace(norm, eps=eps)}), weights
            for statistic in ("rms", "standardize"):
                if statistic != norm.statistic:
                    text = f"{what} are {'RMSNorm' if statistic == 'rms' else 'LayerNorm'}"
                    yield text, _with(config, **{field: replace(norm, statistic=statistic)}), weights
    if config.qk_norm is not None:
        kept = _without(weights, ".q_norm.", ".k_norm.")
        yield "the norm of queries and keys is missing", _with(config, qk_norm=None), kept
    if config.embedding_norm:
        kept = _without(weights, "embedding_norm.")
        yield "the norm after the embedding is missing", _with(config, embedding_norm=False), kept


def _exchanged_norms(config: GPTConfig, weights: Weights) -> Iterator[Changed]:
    """Norms in each other's place: in each block, or those of two neighboring blocks."""
    if not any(".norms." in name for name in weights):  # they have no gains
        return
    inside = {f"blocks.{i}.norms.{one}.": f"blocks.{i}.norms.{1 - one}." for i in range(config.depth) for one in (0, 1)}
    yield "the norms of each block are exchanged", config, _exchanged(weights, inside)
    for i in range(config.depth - 1):
        pair = {f"blocks.{i}.norms.": f"blocks.{i + 1}.norms.", f"blocks.{i + 1}.norms.": f"blocks.{i}.norms."}
        yield f"blocks {i} and {i + 1} have each other's norms", config, _exchanged(weights, pair)


def _exchanged(weights: Weights, places: Mapping[str, str]) -> Weights:
    """Each weight whose name starts with one of these has the value of the other, if there is one."""
    others = {
        name: next((name.replace(a, b) for a, b in places.items() if name.startswith(a)), name) for name in weights
    }
    return {name: weights[other if other in weights else name] for name, other in others.items()}


def _queries_and_keys(config: GPTConfig, weights: Weights) -> Iterator[Changed]:
    """The layouts of rotary pairs: both halves of a head, or neighbors."""
    size = config.head_sizes[2]
    if size % 2:
        return
    halves = torch.arange(size).reshape(2, -1)
    orders = {
        "their halves swapped": halves.flip(0).flatten(),
        "rows in pairs of neighbors instead of halves": halves.t().flatten(),
        "rows in halves instead of pairs of neighbors": halves.reshape(-1, 2).t().flatten(),
    }
    for text, order in orders.items():
        also = ", or the rotation has the opposite sign" if "swapped" in text and config.positions == "rotary" else ""
        yield f"queries and keys have {text}{also}", config, _reorder_heads(weights, ("q", "k"), order)
        yield f"only the queries have {text}", config, _reorder_heads(weights, ("q",), order)
        yield f"only the keys have {text}", config, _reorder_heads(weights, ("k",), order)


def _attention(config: GPTConfig, weights: Weights) -> Iterator[Changed]:
    heads, kv_heads, size = config.head_sizes
    if 1 < kv_heads < heads:
        order = torch.arange(heads).reshape(kv_heads, -1).t().flatten()
        rows = (order[:, None] * size + torch.arange(size)).flatten()
        changed = _change(weights, (".attention.q.",), lambda value: value[rows])
        changed = _change(changed, (".attention.out.weight",), lambda value: value[:, rows])
        yield "query heads are dealt to the key/value heads in turn instead of in groups", config, changed
    orders = {"in reverse order": range(kv_heads)[::-1], "one place too far": [*range(1, kv_heads), 0]}
    for text, heads_of in orders.items() if kv_heads > 1 else ():
        rows = (torch.tensor(list(heads_of))[:, None] * size + torch.arange(size)).flatten()
        changed = _change(weights, (".attention.k.", ".attention.v.", ".attention.k_norm."), _take(rows))
        yield f"key/value heads are {text}", config, changed
    parts = ["q", "k", "v"]
    if kv_heads == heads:
        for order3 in list(permutations(parts))[1:]:
            renamed = dict(zip(parts, order3, strict=True))
            changed = {name: weights[_renamed(name, renamed)] for name in weights}
            yield f"queries, keys and values are taken in the order {', '.join(order3)}", config, changed
        for text, layout in (("by head", _by_head), ("one after the other instead of by head", _by_part)):
            yield f"q, k and v of the joint matrix are read {text}", config, _relaid(config, weights, layout)


def _tables(config: GPTConfig, weights: Weights) -> Iterator[Changed]:
    if config.positions == "learned":
        for by, text in ((-1, "late: position i has the vector of i + 1"), (1, "early: position i has that of i - 1")):
            yield f"positions are off by one, too {text}", config, _change(weights, ("position.",), _roll(by))
        yield "the position embedding is missing", config, _change(weights, ("position.",), torch.zeros_like)
    if not config.tied_head:
        tied = {**weights, "head.weight": weights["embedding.weight"]}
        yield "the output head is the embedding, but the head is not tied", config, tied
    for scale, text in ((1.0, "not scaled"), (config.width**0.5, "multiplied by the root of the width")):
        if scale != config.embedding_scale:
            yield f"the embedding is {text}", _with(config, embedding_scale=scale), weights


def _vectors(config: GPTConfig, weights: Weights) -> Iterator[Changed]:
    """Biases and gains."""
    biases = [name for name in weights if name.endswith(".bias")]
    for parts, text in (
        ((".attention.q.", ".attention.k.", ".attention.v."), "biases of queries, keys and values are"),
        ((".attention.out.",), "biases after the attention are"),
        ((".mlp.",), "biases of the MLP are"),
        (("norm",), "biases of norms are"),
        (("",), "all biases are"),
    ):
        chosen = tuple(name for name in biases if any(part in name for part in parts))
        if chosen:
            yield f"{text} missing", config, _change(weights, chosen, torch.zeros_like)
    gains = tuple(name for name in weights if "norm" in name and name.endswith(".weight"))
    if gains:
        yield "gains of norms are missing", config, _change(weights, gains, torch.ones_like)
        yield "gains of norms are applied as 1 + gain", config, _change(weights, gains, lambda value: value + 1)
        yield "gains of norms are applied as gain - 1", config, _change(weights, gains, lambda value: value - 1)


def _matrices(config: GPTConfig, weights: Weights) -> Iterator[Changed]:
    def transposed(value: Tensor) -> Tensor:
        return value.t() if value.dim() == 2 and value.shape[0] == value.shape[1] else value

    yield "square matrices are transposed", config, _change(weights, ("blocks.",), transposed)
    swapped = {"gate": "up", "up": "gate"}
    if any(".mlp.gate." in name for name in weights):
        changed = {name: weights[_renamed(name, swapped, ".mlp.")] for name in weights}
        yield "gate and up of the MLP are exchanged", config, changed


def _change(weights: Weights, parts: Sequence[str], change: Callable[[Tensor], Tensor]) -> Weights:
    """Change the weights whose name contains one of these parts."""
    return {name: change(v) if any(part in name for part in parts) else v for name, v in weights.items()}


def _without(weights: Weights, *parts: str) -> Weights:
    return {name: value for name, value in weights.items() if not any(part in name for part in parts)}


def _roll(by: int) -> Callable[[Tensor], Tensor]:
    return lambda table: table.roll(by, dims=0)


def _take(rows: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda value: value[rows] if len(value) == len(rows) else value


def _renamed(name: str, renamed: Mapping[str, str], inside: str = ".attention.") -> str:
    before, found, rest = name.partition(inside)
    layer, _, parameter = rest.partition(".")
    return f"{before}{inside}{renamed[layer]}.{parameter}" if found and layer in renamed else name


def _reorder_heads(weights: Weights, names: Sequence[str], order: Tensor) -> Weights:
    """Reorder the features of each head of queries or keys, and the gains of their norms."""
    size = len(order)

    def reorder(value: Tensor) -> Tensor:
        if value.dim() == 1 and len(value) == size:
            return value[order]
        heads: Tensor = value.unflatten(0, (-1, size))
        return heads[:, order].flatten(0, 1)

    changed = _change(weights, [f".attention.{name}." for name in names], reorder)
    return _change(changed, [f".attention.{name}_norm." for name in names], reorder)


def _by_head(stacked: Tensor, heads: int) -> Tensor:
    """Rows (part, head, feature) read as (head, part, feature)."""
    rows: Tensor = stacked.unflatten(0, (heads, 3, -1))
    return rows.transpose(0, 1).flatten(0, 2)


def _by_part(stacked: Tensor, heads: int) -> Tensor:
    rows: Tensor = stacked.unflatten(0, (3, heads, -1))
    return rows.transpose(0, 1).flatten(0, 2)


def _relaid(config: GPTConfig, weights: Weights, layout: Callable[[Tensor, int], Tensor]) -> Weights:
    """Read q, k and v from their joint matrix in another layout."""
    changed = dict(weights)
    for name in [name for name in weights if ".attention.q." in name]:
        names = [name.replace(".attention.q.", f".attention.{part}.") for part in ("q", "k", "v")]
        stacked = layout(torch.cat([weights[one] for one in names]), config.heads)
        changed |= dict(zip(names, stacked.chunk(3), strict=True))
    return changed
