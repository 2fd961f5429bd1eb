"""The block: attention and MLP, each added to the stream."""

import torch
from torch import Tensor

from normscope.blocks.block import Block, BlockConfig
from normscope.blocks.norm import NormSpec
from normscope.blocks.residual import Sublayer
from normscope.learning.checks import as_batch, check_eps, resolve_heads
from normscope.learning.lesson import Lesson, step
from normscope.learning.topics.mlp import TOKENS
from normscope.learning.torch_state import seeded


@step({"normscope's norm": lambda x, block: block.norms[0](x)})
def normed(x: Tensor, eps: float) -> Tensor:
    """Attention does not read the stream itself but a normalised copy, so that the stream may grow as it likes.
    Here it is RMSNorm without a gain."""
    return x / torch.sqrt(x.square().mean(-1, keepdim=True) + eps)


@step()
def looked(attention: Sublayer, normed: Tensor) -> Tensor:
    """Look: tokens exchange what they know (`normscope explain attention`)."""
    return attention(normed)


@step()
def middle(x: Tensor, looked: Tensor) -> Tensor:
    """First residual: what was found is added to the stream, which itself passed by untouched."""
    return x + looked


@step({"normscope's norm": lambda middle, block: block.norms[1](middle)})
def normed_again(middle: Tensor, eps: float) -> Tensor:
    """A normalised copy of the new stream."""
    mean_square = middle.square().mean(-1, keepdim=True)
    return middle / torch.sqrt(mean_square + eps)


@step()
def thought(mlp: Sublayer, normed_again: Tensor) -> Tensor:
    """Think: every token by itself (`normscope explain mlp`)."""
    return mlp(normed_again)


def in_one_line(x: Tensor, block: Block) -> Tensor:
    """x + A(N x) + M(N(x + A(N x)))."""
    attention, mlp, (first, second) = block.attention, block.mlp, block.norms
    y: Tensor = x + attention(first(x)) + mlp(second(x + attention(first(x))))
    return y


@step({"normscope.Block": lambda x, block: block(x), "x + A(N x) + M(N(x + A(N x)))": in_one_line})
def result(middle: Tensor, thought: Tensor) -> Tensor:
    """Second residual. The result has the shape of the input, so any number of blocks can be stacked."""
    return middle + thought


def block(x: Tensor | None, eps: float = 1e-5, heads: int | None = None) -> Lesson:
    check_eps(eps)
    x, heads = stream(x, heads)
    spec = NormSpec("... [d]", statistic="rms", affine=None, eps=eps)
    whole = seeded(lambda: Block(BlockConfig(width=x.shape[-1], heads=heads, norm=spec)))
    return Lesson(
        title="A transformer block, pre-norm",
        summary="""A block does two things in turn: attention, where tokens look at each other, and an MLP, where
        each thinks by itself. Each reads a normalised copy of the stream and adds what it has to say. The weights
        are those of a new block.""",
        given={"x": x, "attention": whole.attention, "mlp": whole.mlp, "eps": eps, "block": whole},
        steps=[normed, looked, middle, normed_again, thought, result],
        axes=("b", "s", "d"),
        hidden=frozenset({"block"}),
    )


def stream(x: Tensor | None, heads: int | None) -> tuple[Tensor, int]:
    """A residual stream, (b, s, d), and a number of heads that fits its width."""
    x = torch.tensor(TOKENS) if x is None else as_batch(x, "a block")
    return x, resolve_heads(x.shape[-1], heads)
