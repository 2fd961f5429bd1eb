"""A transformer block: attention and MLP around a residual stream."""

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
def attention_input(x: Tensor, eps: float) -> Tensor:
    """Attention reads a normalized copy of the residual stream, so the scale of the stream does not matter. Here it is
    RMSNorm without weight."""
    return x / torch.sqrt(x.square().mean(-1, keepdim=True) + eps)


@step()
def attention_output(attention: Sublayer, attention_input: Tensor) -> Tensor:
    """Attention exchanges information between tokens (`normscope explain attention`)."""
    return attention(attention_input)


@step()
def after_attention(x: Tensor, attention_output: Tensor) -> Tensor:
    """First residual connection: add the output of attention to the stream."""
    return x + attention_output


@step({"normscope's norm": lambda after_attention, block: block.norms[1](after_attention)})
def mlp_input(after_attention: Tensor, eps: float) -> Tensor:
    """Normalize the new stream for the MLP."""
    mean_square = after_attention.square().mean(-1, keepdim=True)
    return after_attention / torch.sqrt(mean_square + eps)


@step()
def mlp_output(mlp: Sublayer, mlp_input: Tensor) -> Tensor:
    """The MLP processes each token separately (`normscope explain mlp`)."""
    return mlp(mlp_input)


def expanded_formula(x: Tensor, block: Block) -> Tensor:
    """x + A(N x) + M(N(x + A(N x)))."""
    attention, mlp, (first, second) = block.attention, block.mlp, block.norms
    y: Tensor = x + attention(first(x)) + mlp(second(x + attention(first(x))))
    return y


@step({"normscope.Block": lambda x, block: block(x), "x + A(N x) + M(N(x + A(N x)))": expanded_formula})
def result(after_attention: Tensor, mlp_output: Tensor) -> Tensor:
    """Second residual connection. The output has the shape of the input, so blocks can be stacked."""
    return after_attention + mlp_output


def block(x: Tensor | None, eps: float = 1e-5, heads: int | None = None) -> Lesson:
    check_eps(eps)
    x, heads = stream(x, heads)
    spec = NormSpec("... [d]", statistic="rms", affine=None, eps=eps)
    whole = seeded(lambda: Block(BlockConfig(width=x.shape[-1], heads=heads, norm=spec)))
    return Lesson(
        title="A transformer block, pre-norm",
        summary="""A block applies attention, which mixes tokens, and then an MLP, which processes each token
        separately. Each reads a normalized copy of the residual stream and adds its output to the stream. The weights
        are those of a newly initialized block.""",
        given={"x": x, "attention": whole.attention, "mlp": whole.mlp, "eps": eps, "block": whole},
        steps=[attention_input, attention_output, after_attention, mlp_input, mlp_output, result],
        axes=("b", "s", "d"),
        hidden=("block",),
    )


def stream(x: Tensor | None, heads: int | None) -> tuple[Tensor, int]:
    """Return a residual stream of shape (b, s, d) and a number of heads that divides its width."""
    x = torch.tensor(TOKENS) if x is None else as_batch(x, "a block")
    return x, resolve_heads(x.shape[-1], heads)
