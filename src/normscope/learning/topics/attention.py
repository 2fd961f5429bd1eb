"""Attention: scores, mask, softmax, mix."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normscope.blocks.attention import Attention
from normscope.errors import ShapeError
from normscope.learning.checks import as_batch, resolve_heads
from normscope.learning.lesson import Lesson, step
from normscope.learning.torch_state import seeded

TOKENS = (((1.0, 0.0, 1.0, 0.0), (0.0, 2.0, 0.0, 1.0), (1.0, 1.0, -1.0, 0.0)),)
"""A text of three tokens of width four."""

LARGEST = 2**24
"""How many scores there may be."""

HEADS, PAIRS = "b h s e", "b h s t"


def in_heads(flat: Tensor, heads: int) -> Tensor:
    """(b, s, h*e) -> (b, h, s, e)."""
    return torch.stack(flat.chunk(heads, dim=-1), dim=1)


@step({"normscope.Attention's q": lambda x, layer: in_heads(layer.q(x), layer.heads)}, axes=HEADS)
def queries(x: Tensor, q_weight: Tensor, heads: int) -> Tensor:
    """What each token is looking for. The features are dealt out to {heads} heads, which look for different things."""
    return (x @ q_weight.T).view(*x.shape[:2], heads, -1).transpose(1, 2)


@step({"normscope.Attention's k": lambda x, layer: in_heads(layer.k(x), layer.heads)}, axes=HEADS)
def keys(x: Tensor, k_weight: Tensor, heads: int) -> Tensor:
    """What each token has on offer, to be found by. (A model with QK-norm would now normalise queries and keys,
    and one with rotary positions turn them by their place.)"""
    return (x @ k_weight.T).view(*x.shape[:2], heads, -1).transpose(1, 2)


@step({"normscope.Attention's v": lambda x, layer: in_heads(layer.v(x), layer.heads)}, axes=HEADS)
def values(x: Tensor, v_weight: Tensor, heads: int) -> Tensor:
    """What each token says when it is looked at."""
    return (x @ v_weight.T).view(*x.shape[:2], heads, -1).transpose(1, 2)


@step(axes=PAIRS)
def scores(queries: Tensor, keys: Tensor) -> Tensor:
    """How well each query (down) fits each key (across): their product, divided by the root of a head's size so
    that wide heads do not shout."""
    return queries @ keys.mT / math.sqrt(keys.shape[-1])


@step(axes=PAIRS)
def masked(scores: Tensor) -> Tensor:
    """No one may look ahead: what lies right of the diagonal is in the future, and gets minus infinity."""
    size = scores.shape[-1]
    future = torch.ones(size, size, dtype=torch.bool).triu(diagonal=1)
    return scores.masked_fill(future, -math.inf)


@step({"torch.softmax": lambda masked: torch.softmax(masked, -1)}, axes=PAIRS)
def attention(masked: Tensor) -> Tensor:
    """Softmax makes shares of the scores: none is below 0, every row adds up to 1, and the future gets exactly 0."""
    exponentials = torch.exp(masked - masked.amax(-1, keepdim=True))
    return exponentials / exponentials.sum(-1, keepdim=True)


def by_torch(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(queries, keys, values, is_causal=True)


@step({"torch's scaled_dot_product_attention": by_torch}, axes=HEADS)
def mixed(attention: Tensor, values: Tensor) -> Tensor:
    """Each token takes from each that it may see as much of its value as its share says."""
    return attention @ values


@step()
def joined(mixed: Tensor) -> Tensor:
    """The heads side by side again, as wide as the input."""
    return mixed.transpose(1, 2).flatten(-2)


def by_torch_layer(x: Tensor, layer: Attention) -> Tensor:
    """torch.nn.MultiheadAttention with the same weights."""
    theirs = nn.MultiheadAttention(x.shape[-1], layer.heads, bias=False, batch_first=True)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat((layer.q.weight, layer.k.weight, layer.v.weight)))
        theirs.out_proj.weight.copy_(layer.out.weight)
    future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(diagonal=1)
    y: Tensor = theirs(x, x, x, attn_mask=future, need_weights=False)[0]
    return y


@step({"torch.nn.MultiheadAttention": by_torch_layer, "normscope.Attention": lambda x, layer: layer(x)})
def result(joined: Tensor, out_weight: Tensor) -> Tensor:
    """A last linear layer mixes what the heads have found."""
    return joined @ out_weight.T


def attention_lesson(x: Tensor | None, heads: int | None = None) -> Lesson:
    own = x is not None
    x = torch.tensor(TOKENS) if x is None else as_batch(x, "attention")
    width = x.shape[-1]
    heads = resolve_heads(width, heads)
    if x.shape[0] * heads * x.shape[1] ** 2 > LARGEST:
        raise ShapeError(
            f"{x.shape[1]} tokens have too many pairs to show, in {x.shape[0]} texts with {heads} heads"
            f"\nfix: give the first few hundred tokens of one text"
        )
    layer = seeded(lambda: Attention(width, heads))
    if not own:
        with torch.no_grad():
            for part in (layer.q, layer.k, layer.v, layer.out):
                part.weight.copy_(torch.eye(width))
    remark = (
        "" if own else " All four weights are the identity here, so queries, keys and values are the tokens themselves."
    )
    return Lesson(
        title="Causal attention",
        summary=f"""Attention is where tokens look at each other. Each asks a question (query), which is compared
        with what all the tokens before it, and itself, have to offer (keys); then it takes a weighted mean of
        what they say (values).{remark}""",
        given={
            "x": x,
            "heads": heads,
            "q_weight": layer.q.weight.detach(),
            "k_weight": layer.k.weight.detach(),
            "v_weight": layer.v.weight.detach(),
            "out_weight": layer.out.weight.detach(),
            "layer": layer,
        },
        steps=[queries, keys, values, scores, masked, attention, mixed, joined, result],
        axes=("b", "s", "d"),
        hidden=frozenset({"layer", *(() if own else ("q_weight", "k_weight", "v_weight", "out_weight"))}),
    )
