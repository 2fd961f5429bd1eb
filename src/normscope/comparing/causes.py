"""Why two models differ: apply known mistakes of conversions to one of them, and see which makes the outputs equal.

Nothing is guessed from names: a cause is reported only if the changed model gives the other side's logits.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

import torch
from torch import Tensor

from normscope.blocks.activations import ACTIVATIONS
from normscope.blocks.norm.norm_spec import NormSpec
from normscope.comparing.behavior import centered, logit_distances
from normscope.comparing.runtime import FloatArray, GPTRuntime, Runtime
from normscope.errors import NormscopeError
from normscope.interop.checkpoint import model_from_weights
from normscope.models.gpt import GPTConfig

Weights = Mapping[str, Tensor]
Changed = tuple[str, GPTConfig, Weights]
"""A mistake in words, and the model that has it."""

_BETTER = 4.0
"""A first cause must make the distance this many times smaller to look for a second one."""


@dataclass(frozen=True)
class Cause:
    """What makes the outputs equal.

    Args:
        mistakes: what the second side does, or the first doesn't; usually one.
        distance: largest difference of a logit that is left, in standard deviations of the logits.
        is_full: whether what is left is within the tolerance.
    """

    mistakes: tuple[str, ...]
    distance: float
    is_full: bool

    def __str__(self) -> str:
        text = "; and ".join(self.mistakes)
        return text if self.is_full else f"partly: {text} (what is left: {self.distance:.2g})"


def find_cause(a: GPTRuntime, b: Runtime, tokens: Sequence[int], tolerance: float) -> Cause | None:
    """Find the mistake that explains why `b` differs from `a`: `a` with the mistake gives the logits of `b`.

    Args:
        a: the reference.
        b: the other side, in any tool.
        tokens: tokens on which they differ.
        tolerance: largest distance of equal logits.
    """
    tokens = list(tokens)
    size = min(a.vocab_size, b.vocab_size)
    theirs = centered(b.logits(tokens)[:, :size])
    config = a.model.config
    weights: Weights = a.model.state_dict()

    def distance(config: GPTConfig, weights: Weights) -> float:
        try:
            logits = GPTRuntime(model_from_weights(config, weights)).logits(tokens)[:, :size]
        except NormscopeError:  # settings that do not fit together
            return float("inf")
        return max(logit_distances(centered(logits), theirs))

    start = distance(config, weights)
    shift = _shifted(centered(a.logits(tokens)[:, :size]), theirs, tolerance)
    if shift is not None:
        return shift
    first = min(_measured(mistakes(config, weights), distance), key=lambda one: one[0], default=None)
    if first is None or not first[0] * _BETTER < start:
        return None
    left, (text, config, weights) = first
    if left <= tolerance:
        return Cause((text,), left, True)
    second = min(_measured(mistakes(config, weights), distance), key=lambda one: one[0])
    if second[0] <= tolerance:
        return Cause((text, second[1][0]), second[0], True)
    return Cause((text,), left, False)


def _measured(
    changed: Iterable[Changed], distance: Callable[[GPTConfig, Weights], float]
) -> Iterator[tuple[float, Changed]]:
    for one in changed:
        yield distance(one[1], one[2]), one


def _shifted(ours: FloatArray, theirs: FloatArray, tolerance: float) -> Cause | None:
    """Whether the logits are those of the next or the previous position."""
    for text, one, other in (
        ("its logits are one position late: those at i are of i - 1", ours[:-1], theirs[1:]),
        ("its logits are one position early: those at i are of i + 1", ours[1:], theirs[:-1]),
    ):
        left = max(logit_distances(one, other), default=float("inf"))
        if left <= tolerance:
            return Cause((text,), left, True)
    return None


def mistakes(config: GPTConfig, weights: Weights) -> Iterator[Changed]:
    """The model with each of the known mistakes that apply to it."""
    for family in (_settings, _special_settings, _norms, _queries_and_keys, _attention, _tables, _vectors, _matrices):
        yield from family(config, weights)


def _with(config: GPTConfig, **settings: Any) -> GPTConfig:
    return replace(config, **settings)


def _settings(config: GPTConfig, weights: Weights) -> Iterator[Changed]:
    gated = ACTIVATIONS[config.activation].gated
    for name, activation in ACTIVATIONS.items():
        if activation.gated == gated and name != config.activation:
            yield f"the activation is {name} instead of {config.activation}", _with(config, activation=name), weights
    if config.positions == "rotary":
        for base in (1e4, 1e5, 5e5, 1e6):
            if base != config.rotary_base:
                text = f"the base of the rotary embedding is {base:g} instead of {config.rotary_base:g}"
                yield text, _with(config, rotary_base=base), weights
        yield "the rotary embedding is missing", _with(config, positions="none"), weights
    for cap in (None, 15.0, 30.0):
        if cap != config.logit_cap:
            text = f"the soft cap of the logits is {cap or 'none'} instead of {config.logit_cap or 'none'}"
            yield text, _with(config, logit_cap=cap), weights
    for window in {None, 0 if config.window is None else config.window - 1}:
        if window != config.window and window != 0:
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
