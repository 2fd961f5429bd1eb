"""Residual connections: forward, backward, and the wirings."""

import torch
from torch import Tensor

from normscope.blocks.block import Block
from normscope.blocks.residual import WIRINGS, Sublayer
from normscope.learning.inputs import TEXT_AXES, needs_sequences, resolve_heads
from normscope.learning.lesson import Lesson, Step, Topic
from normscope.learning.topics.block import make_block
from normscope.learning.topics.mlp import TOKENS


@Step()
def normalized(norm: Sublayer, x: Tensor) -> Tensor:
    """The branch reads a normalized copy (here RMSNorm without weight)."""
    return norm(x)


@Step()
def branch_output(mlp: Sublayer, normalized: Tensor) -> Tensor:
    """Output of the branch, here an MLP."""
    return mlp(normalized)


@Step()
def residual_sum(x: Tensor, branch_output: Tensor) -> Tensor:
    """The residual connection: add the output of the branch to the unchanged input."""
    return x + branch_output


def one_plus_slope(x: Tensor, norm: Sublayer, mlp: Sublayer) -> Tensor:
    """1 + f'(x), with f the branch alone."""
    leaf = x.clone().requires_grad_()
    return 1 + torch.autograd.grad(mlp(norm(leaf)).sum(), leaf)[0]


@Step({"1 + the gradient of the branch alone": one_plus_slope})
def gradient(x: Tensor, norm: Sublayer, mlp: Sublayer) -> Tensor:
    """Backward: the gradient of x + f(x) is 1 + f'(x). The 1 is the identity path: it passes the gradient on even if
    the branch contributes none."""
    leaf = x.clone().requires_grad_()
    total = leaf + mlp(norm(leaf))
    return torch.autograd.grad(total.sum(), leaf)[0]


def _wiring(name: str) -> Step:
    """Make a function a step that is compared with a block of this wiring."""
    return Step({"normscope.Block": lambda blocks, x: blocks[name](x)})


@_wiring("pre")
def pre(x: Tensor, attention: Sublayer, mlp: Sublayer, norm: Sublayer) -> Tensor:
    """Wiring pre (GPT-2, Llama, nanochat): each branch reads a normalized copy; the stream itself is never
    normalized."""
    middle = x + attention(norm(x))
    return middle + mlp(norm(middle))


@_wiring("post")
def post(x: Tensor, attention: Sublayer, mlp: Sublayer, norm: Sublayer) -> Tensor:
    """Wiring post (the original Transformer, BERT): the sum is normalized, and so is the identity path."""
    middle = norm(x + attention(x))
    return norm(middle + mlp(middle))


@_wiring("sandwich")
def sandwich(x: Tensor, attention: Sublayer, mlp: Sublayer, norm: Sublayer) -> Tensor:
    """Wiring sandwich (Gemma 2): both the input and the output of each branch are normalized."""
    middle = x + norm(attention(norm(x)))
    return middle + norm(mlp(norm(middle)))


@_wiring("parallel")
def parallel(x: Tensor, attention: Sublayer, mlp: Sublayer, norm: Sublayer) -> Tensor:
    """Wiring parallel (GPT-J, PaLM): both branches read the same copy, and both outputs are added."""
    return x + attention(norm(x)) + mlp(norm(x))


@_wiring("parallel-2")
def parallel_2(x: Tensor, attention: Sublayer, mlp: Sublayer, norm: Sublayer) -> Tensor:
    """Wiring parallel-2 (GPT-NeoX, Pythia): as parallel, with a norm for each branch. They differ once trained."""
    return x + attention(norm(x)) + mlp(norm(x))


@_wiring("branch")
def branch(x: Tensor, attention: Sublayer, mlp: Sublayer, norm: Sublayer) -> Tensor:
    """Wiring branch (OLMo 2): only the output of each branch is normalized."""
    middle = x + norm(attention(x))
    return middle + norm(mlp(middle))


@_wiring("single")
def single(x: Tensor, attention: Sublayer, mlp: Sublayer, norm: Sublayer) -> Tensor:
    """Wiring single: one residual connection around both branches. The output of attention reaches the stream only
    through the MLP."""
    return x + mlp(attention(norm(x)))


@_wiring("none")
def none(x: Tensor, attention: Sublayer, mlp: Sublayer, norm: Sublayer) -> Tensor:
    """Wiring none: without a residual connection, only what the branches preserve of x remains."""
    return mlp(attention(norm(x)))


@Step(columns=tuple(WIRINGS), axes="")
def gradient_through_a_stack(x: Tensor, blocks: dict[str, Block]) -> Tensor:
    """RMS of the gradient at the input of twelve blocks of each wiring, for a gradient of 1 at the output. Without
    residual connections hardly any gradient arrives. (`blocks` has one block per wiring, with the same weights.)"""
    rms_at_input = []
    for block in blocks.values():
        y = leaf = x.clone().requires_grad_()
        for _ in range(12):
            y = block(y)
        gradient = torch.autograd.grad(y.sum(), leaf)[0]
        rms_at_input.append(gradient.square().mean().sqrt())
    return torch.stack(rms_at_input)[None]


@Topic(
    "residual connections and the wirings",
    title="Residual connections and the wirings",
    example=TOKENS,
    check=needs_sequences("a block"),
    axes=TEXT_AXES,
)
def residual(x: Tensor, eps: float = 1e-5, heads: int | None = None) -> Lesson:
    """A residual connection adds the output of a branch to its input. This identity path carries signals and gradients
    through dozens of layers. The wiring determines where the norms are and how many residual connections there are:
    here are the wirings of normscope, on the same input with the same weights."""
    heads = resolve_heads(x.shape[-1], heads)
    blocks = {wiring: make_block(x.shape[-1], heads, eps, wiring) for wiring in WIRINGS}
    first = blocks["pre"]
    given = {"x": x, "attention": first.attention, "mlp": first.mlp, "norm": first.norms[0]}
    return Lesson(given, {"blocks": blocks})
