"""Residual connections: what they add, what they do for gradients, and the six wirings."""

import torch
from torch import Tensor

from normscope.blocks.block import Block, BlockConfig
from normscope.blocks.norm import NormSpec
from normscope.blocks.residual import WIRINGS, Sublayer
from normscope.learning.checks import check_eps
from normscope.learning.lesson import Lesson, step
from normscope.learning.topics.block import stream
from normscope.learning.torch_state import seeded


@step()
def normed(norm: Sublayer, x: Tensor) -> Tensor:
    """The branch reads a normalised copy (here by RMSNorm without a gain)."""
    return norm(x)


@step()
def branch(mlp: Sublayer, normed: Tensor) -> Tensor:
    """What the branch has to say; here it is an MLP."""
    return mlp(normed)


@step()
def added(x: Tensor, branch: Tensor) -> Tensor:
    """The residual connection: the branch's answer is added, and x itself passes by unharmed."""
    return x + branch


def one_plus_slope(x: Tensor, norm: Sublayer, mlp: Sublayer) -> Tensor:
    """1 + f'(x), with f the branch alone."""
    leaf = x.clone().requires_grad_()
    return 1 + torch.autograd.grad(mlp(norm(leaf)).sum(), leaf)[0]


@step({"1 + the gradient of the branch alone": one_plus_slope})
def gradient(x: Tensor, norm: Sublayer, mlp: Sublayer) -> Tensor:
    """Backward: the gradient of x + f(x) is 1 + f'(x). The 1 is the highway: even if the branch gave no gradient
    at all, this would arrive."""
    leaf = x.clone().requires_grad_()
    total = leaf + mlp(norm(leaf))
    return torch.autograd.grad(total.sum(), leaf)[0]


@step({"normscope.Block": lambda blocks, x: blocks["pre"](x)})
def pre(x: Tensor, attention: Sublayer, mlp: Sublayer, norm: Sublayer) -> Tensor:
    """Wiring pre (GPT-2, Llama, nanochat): a normalised copy goes into each branch, the stream itself is never
    normalised."""
    middle = x + attention(norm(x))
    return middle + mlp(norm(middle))


@step({"normscope.Block": lambda blocks, x: blocks["post"](x)})
def post(x: Tensor, attention: Sublayer, mlp: Sublayer, norm: Sublayer) -> Tensor:
    """Wiring post (the first transformer, BERT): the sum is normalised, and with it the highway."""
    middle = norm(x + attention(x))
    return norm(middle + mlp(middle))


@step({"normscope.Block": lambda blocks, x: blocks["sandwich"](x)})
def sandwich(x: Tensor, attention: Sublayer, mlp: Sublayer, norm: Sublayer) -> Tensor:
    """Wiring sandwich (Gemma 2): what goes into a branch is normalised, and what comes out too."""
    middle = x + norm(attention(norm(x)))
    return middle + norm(mlp(norm(middle)))


@step({"normscope.Block": lambda blocks, x: blocks["parallel"](x)})
def parallel(x: Tensor, attention: Sublayer, mlp: Sublayer, norm: Sublayer) -> Tensor:
    """Wiring parallel (GPT-J, PaLM): both branches read the same copy, and are added together."""
    return x + attention(norm(x)) + mlp(norm(x))


@step({"normscope.Block": lambda blocks, x: blocks["single"](x)})
def single(x: Tensor, attention: Sublayer, mlp: Sublayer, norm: Sublayer) -> Tensor:
    """What if one residual went around both? Then the block cannot look without also thinking: what attention
    found reaches the stream only through the MLP."""
    return x + mlp(attention(norm(x)))


@step({"normscope.Block": lambda blocks, x: blocks["none"](x)})
def none(x: Tensor, attention: Sublayer, mlp: Sublayer, norm: Sublayer) -> Tensor:
    """And with none, all that x was is gone, but for what the branches kept of it."""
    return mlp(attention(norm(x)))


@step(columns=tuple(WIRINGS), axes="")
def gradient_through_a_stack(x: Tensor, blocks: dict[str, Block]) -> Tensor:
    """Through twelve blocks of each wiring: how much of a gradient of 1 at the top arrives at the bottom (its
    root mean square). Without a residual hardly anything does. (`blocks` has a block of each wiring, all with the
    same weights.)"""
    arrived = []
    for block in blocks.values():
        y = leaf = x.clone().requires_grad_()
        for _ in range(12):
            y = block(y)
        gradient = torch.autograd.grad(y.sum(), leaf)[0]
        arrived.append(gradient.square().mean().sqrt())
    return torch.stack(arrived)[None]


def residual(x: Tensor | None, eps: float = 1e-5, heads: int | None = None) -> Lesson:
    check_eps(eps)
    x, heads = stream(x, heads)
    width = x.shape[-1]
    spec = NormSpec("... [d]", statistic="rms", affine=None, eps=eps)

    def made(wiring: str) -> Block:
        return seeded(lambda: Block(BlockConfig(width=width, heads=heads, norm=spec, wiring=wiring)))

    blocks = {wiring: made(wiring) for wiring in WIRINGS}  # one seed: they all have the same weights
    return Lesson(
        title="Residual connections, and six ways to wire them",
        summary="""Around every branch of a block runs a highway: the input itself, to which the branch only adds.
        It lets signals and gradients pass through dozens of layers. Where the norm stands, and how many highways
        there are, is the wiring; here are the six of normscope, on the same numbers with the same weights.""",
        given={
            "x": x,
            "attention": blocks["pre"].attention,
            "mlp": blocks["pre"].mlp,
            "norm": blocks["pre"].norms[0],
            "blocks": blocks,
        },
        steps=[
            normed,
            branch,
            added,
            gradient,
            pre,
            post,
            sandwich,
            parallel,
            single,
            none,
            gradient_through_a_stack,
        ],
        axes=("b", "s", "d"),
        hidden=frozenset({"blocks"}),
    )
