"""Causal attention: scores, mask, softmax, weighted values."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normscope.blocks.attention import Attention
from normscope.errors import ShapeError
from normscope.learning.inputs import TEXT_AXES, needs_sequences, resolve_heads
from normscope.learning.lesson import Lesson, Step, Topic, seeded

MAX_SCORES = 2**24
"""Maximum number of scores."""

HEADS, PAIRS = "b h s e", "b h s t"


def split_heads(flat: Tensor, heads: int) -> Tensor:
    """(b, s, h*e) -> (b, h, s, e)."""
    return torch.stack(flat.chunk(heads, dim=-1), dim=1)


@Step({"normscope.Attention's q": lambda x, layer: split_heads(layer.q(x), layer.heads)}, axes=HEADS)
def queries(x: Tensor, q_weight: Tensor, heads: int) -> Tensor:
    """Queries: what each token looks for. The features are split among {heads} heads."""
    return (x @ q_weight.T).view(*x.shape[:2], heads, -1).transpose(1, 2)


@Step({"normscope.Attention's k": lambda x, layer: split_heads(layer.k(x), layer.heads)}, axes=HEADS)
def keys(x: Tensor, k_weight: Tensor, heads: int) -> Tensor:
    """Keys: what each token offers. (A model with QK-norm would now normalize queries and keys; one with rotary
    embeddings would rotate them by position.)"""
    return (x @ k_weight.T).view(*x.shape[:2], heads, -1).transpose(1, 2)


@Step({"normscope.Attention's v": lambda x, layer: split_heads(layer.v(x), layer.heads)}, axes=HEADS)
def values(x: Tensor, v_weight: Tensor, heads: int) -> Tensor:
    """Values: what each token contributes when attended to."""
    return (x @ v_weight.T).view(*x.shape[:2], heads, -1).transpose(1, 2)


@Step(axes=PAIRS)
def scores(queries: Tensor, keys: Tensor) -> Tensor:
    """Dot product of each query (row) with each key (column), divided by sqrt(head size) to keep the scale independent
    of the head size."""
    return queries @ keys.mT / math.sqrt(keys.shape[-1])


@Step(axes=PAIRS)
def masked(scores: Tensor) -> Tensor:
    """Causal mask: set the scores of future positions, right of the diagonal, to minus infinity."""
    size = scores.shape[-1]
    future = torch.ones(size, size, dtype=torch.bool).triu(diagonal=1)
    return scores.masked_fill(future, -math.inf)


@Step({"torch.softmax": lambda masked: torch.softmax(masked, -1)}, axes=PAIRS)
def attention_weights(masked: Tensor) -> Tensor:
    """Softmax turns scores into weights: nonnegative, each row sums to 1, and the future gets exactly 0."""
    exponentials = torch.exp(masked - masked.amax(-1, keepdim=True))
    return exponentials / exponentials.sum(-1, keepdim=True)


def sdpa(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(queries, keys, values, is_causal=True)


@Step({"torch's scaled_dot_product_attention": sdpa}, axes=HEADS)
def head_outputs(attention_weights: Tensor, values: Tensor) -> Tensor:
    """Weighted mean of the values."""
    return attention_weights @ values


@Step()
def concatenated(head_outputs: Tensor) -> Tensor:
    """Concatenate the heads, back to the width of the input."""
    return head_outputs.transpose(1, 2).flatten(-2)


def torch_multihead_attention(x: Tensor, layer: Attention) -> Tensor:
    """Run torch.nn.MultiheadAttention with the same weights."""
    theirs = nn.MultiheadAttention(x.shape[-1], layer.heads, bias=False, batch_first=True)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat((layer.q.weight, layer.k.weight, layer.v.weight)))
        theirs.out_proj.weight.copy_(layer.out.weight)
    future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(diagonal=1)
    y: Tensor = theirs(x, x, x, attn_mask=future, need_weights=False)[0]
    return y


@Step({"torch.nn.MultiheadAttention": torch_multihead_attention, "normscope.Attention": lambda x, layer: layer(x)})
def result(concatenated: Tensor, out_weight: Tensor) -> Tensor:
    """The output projection mixes the heads."""
    return concatenated @ out_weight.T


@Topic(
    "scores, mask, softmax, weighted values",
    title="Causal attention",
    example=(((1.0, 0.0, 1.0, 0.0), (0.0, 2.0, 0.0, 1.0), (1.0, 1.0, -1.0, 0.0)),),
    check=needs_sequences("attention"),
    axes=TEXT_AXES,
)
def attention(x: Tensor, is_example: bool, heads: int | None = None) -> Lesson:
    """Attention exchanges information between tokens. The query of each token is compared with the keys of all earlier
    tokens and its own; the output is the weighted mean of their values."""
    heads = resolve_heads(x.shape[-1], heads)
    if x.shape[0] * heads * x.shape[1] ** 2 > MAX_SCORES:
        raise ShapeError(
            f"too many attention scores: {x.shape[0]} sequences of {x.shape[1]} tokens with {heads} heads"
            f"\nfix: use the first few hundred tokens of one sequence"
        )
    layer = seeded(lambda: Attention(x.shape[-1], heads))
    parts = {"q": layer.q, "k": layer.k, "v": layer.v, "out": layer.out}
    if is_example:
        for part in parts.values():
            nn.init.eye_(part.weight)
    given, weights = {"x": x, "heads": heads}, {f"{name}_weight": part.weight.detach() for name, part in parts.items()}
    note = "All four weights of the example are the identity, so queries, keys and values equal the tokens."
    if is_example:
        return Lesson(given, {"layer": layer, **weights}, note)
    return Lesson({**given, **weights}, {"layer": layer})
