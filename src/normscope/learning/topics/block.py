"""A transformer block: attention and MLP around a residual stream."""

import torch
from torch import Tensor

from normscope.blocks.block import Block, BlockConfig
from normscope.blocks.norm import NormSpec
from normscope.blocks.residual import Sublayer
from normscope.learning.inputs import TEXT_AXES, needs_sequences, resolve_heads
from normscope.learning.lesson import Lesson, Step, Topic, seeded
from normscope.learning.topics.mlp import TOKENS


@Step({"normscope's norm": lambda x, block: block.norms[0](x)})
def attention_input(x: Tensor, eps: float) -> Tensor:
    """Attention reads a normalized copy of the residual stream, so the scale of the stream does not matter. Here it is
    RMSNorm without weight."""
    return x / torch.sqrt(x.square().mean(-1, keepdim=True) + eps)


@Step()
def attention_output(attention: Sublayer, attention_input: Tensor) -> Tensor:
    """Attention exchanges information between tokens (`normscope explain attention`)."""
    return attention(attention_input)


@Step()
def after_attention(x: Tensor, attention_output: Tensor) -> Tensor:
    """First residual connection: add the output of attention to the stream."""
    return x + attention_output


@Step({"normscope's norm": lambda after_attention, block: block.norms[1](after_attention)})
def mlp_input(after_attention: Tensor, eps: float) -> Tensor:
    """Normalize the new stream for the MLP."""
    mean_square = after_attention.square().mean(-1, keepdim=True)
    return after_attention / torch.sqrt(mean_square + eps)


@Step()
def mlp_output(mlp: Sublayer, mlp_input: Tensor) -> Tensor:
    """The MLP processes each token separately (`normscope explain mlp`)."""
    return mlp(mlp_input)


def expanded_formula(x: Tensor, block: Block) -> Tensor:
    """x + A(N x) + M(N(x + A(N x)))."""
    attention, mlp, (first, second) = block.attention, block.mlp, block.norms
    y: Tensor = x + attention(first(x)) + mlp(second(x + attention(first(x))))
    return y


@Step({"normscope.Block": lambda x, block: block(x), "x + A(N x) + M(N(x + A(N x)))": expanded_formula})
def result(after_attention: Tensor, mlp_output: Tensor) -> Tensor:
    """Second residual connection. The output has the shape of the input, so blocks can be stacked."""
    return after_attention + mlp_output


def make_block(width: int, heads: int, eps: float, wiring: str = "pre") -> Block:
    """Return a block with RMSNorm without weight; all wirings have the same initial weights."""
    spec = NormSpec("... [d]", statistic="rms", affine=None, eps=eps)
    return seeded(lambda: Block(BlockConfig(width=width, heads=heads, norm=spec, wiring=wiring)))


@Topic(
    "attention and MLP around a residual stream",
    title="A transformer block, pre-norm",
    example=TOKENS,
    check=needs_sequences("a block"),
    axes=TEXT_AXES,
)
def block(x: Tensor, eps: float = 1e-5, heads: int | None = None) -> Lesson:
    """A block applies attention, which mixes tokens, and then an MLP, which processes each token separately. Each reads
    a normalized copy of the residual stream and adds its output to the stream. The weights are those of a newly
    initialized block."""
    whole = make_block(x.shape[-1], resolve_heads(x.shape[-1], heads), eps)
    return Lesson({"x": x, "attention": whole.attention, "mlp": whole.mlp, "eps": eps}, {"block": whole})
