"""PowerNorm: a running quadratic mean, and a backward pass that stands in for the gradient through it."""

from typing import NamedTuple

import torch
from torch import Tensor

from normscope.blocks.norm import PowerNorm
from normscope.learning.checks import axis_names, check_eps, check_rank
from normscope.learning.lesson import Lesson, step
from normscope.learning.topics.layer_norm import Axes
from normscope.learning.topics.layer_norm import result as affine
from normscope.learning.topics.rms_norm import TOKENS


class Batch(NamedTuple):
    """What the real layer gave for a batch, forward and backward, and what it remembers after it."""

    result: Tensor
    gradient: Tensor
    square: Tensor
    pull: Tensor


def real(x: Tensor, eps: float, batches: int = 1) -> Batch:
    """The layer of this project on the same batch so many times, with the loss sum(y^2) / 2."""
    layer = PowerNorm(x.shape[-1], eps)
    for _ in range(batches):
        leaf = x.clone().requires_grad_()
        y = layer(leaf)
        torch.autograd.backward(y.square().sum() / 2)
    assert leaf.grad is not None
    return Batch(y, leaf.grad, layer.get_buffer("running_square"), layer.get_buffer("running_nu"))


@step(axes="d")
def psi(running_square: Tensor, eps: float) -> Tensor:
    """What to divide by: the root of the quadratic mean that the layer remembers of the batches before this one. A new
    layer remembers 1."""
    return torch.sqrt(running_square + eps)


@step()
def standardized(x: Tensor, psi: Tensor) -> Tensor:
    """Divide. Nothing is centred, and this batch's own statistics have no say in it: a strange batch cannot spoil
    its own result."""
    return x / psi


@step()
def gradient(result: Tensor, weight: Tensor) -> Tensor:
    """Now backward. Let the loss be sum(result^2) / 2: then the gradient of each result is the result itself, and
    that of the standardized numbers the same times the gain."""
    return result * weight


@step({"normscope.PowerNorm, backward": lambda x, eps: real(x, eps).gradient})
def gradient_of_x(gradient: Tensor, running_nu: Tensor, standardized: Tensor, psi: Tensor) -> Tensor:
    """psi came from batches that are gone, so no gradient can flow back through it. In its place stands what is
    remembered of that gradient, running_nu (nu in the paper), which is 0 at the start."""
    return (gradient - running_nu * standardized) / psi


@step({"normscope.PowerNorm's buffer": lambda x, eps: real(x, eps).pull}, axes="d")
def new_pull(running_nu: Tensor, gradient: Tensor, standardized: Tensor, over: Axes) -> Tensor:
    """The backward pass moves that memory: a tenth of how strongly this batch's gradient pulls along its own
    numbers."""
    power = standardized.square().mean(over)
    pull = (gradient * standardized).mean(over)
    return running_nu * (1 - 0.1 * power) + 0.1 * pull


@step(axes="d")
def batch_square(x: Tensor, over: Axes) -> Tensor:
    """This batch's own quadratic mean: the mean of the squares of each feature, over all tokens."""
    return x.square().mean(over)


@step({"normscope.PowerNorm's buffer": lambda x, eps: real(x, eps).square}, axes="d")
def new_square(running_square: Tensor, batch_square: Tensor) -> Tensor:
    """The running quadratic mean goes a tenth of the way towards it, for the next batch."""
    return 0.9 * running_square + 0.1 * batch_square


@step({"normscope.PowerNorm, second batch": lambda x, eps: real(x, eps, 2).result})
def second_result(x: Tensor, new_square: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """The same batch once more: it is divided by what was remembered of it, and comes out nearer to
    a size of 1."""
    return x / torch.sqrt(new_square + eps) * weight + bias


@step({"normscope.PowerNorm, second backward": lambda x, eps: real(x, eps, 2).gradient})
def second_gradient_of_x(
    x: Tensor, second_result: Tensor, new_pull: Tensor, new_square: Tensor, weight: Tensor, eps: float
) -> Tensor:
    """And backward: now the remembered pull is taken out of the gradient."""
    new_psi = torch.sqrt(new_square + eps)
    pulled = new_pull * x / new_psi
    return (second_result * weight - pulled) / new_psi


def powernorm(x: Tensor | None, eps: float = 1e-5) -> Lesson:
    x = torch.tensor(TOKENS) if x is None else check_rank(x, "PowerNorm", least=2)
    check_eps(eps)
    width = x.shape[-1]
    return Lesson(
        title="PowerNorm, over [...] d",
        summary="""BatchNorm for text. Every feature is divided by the root of its quadratic mean over all tokens;
        not this batch's, which in text jumps about, but a running one from the batches before, in training too.
        There is no centring, and the backward pass is an approximation of its own (Shen et al. 2020).""",
        given={
            "x": x,
            "running_square": torch.ones(width),
            "running_nu": torch.zeros(width),
            "weight": torch.ones(width),
            "bias": torch.zeros(width),
            "eps": eps,
            "over": tuple(range(x.dim() - 1)),
        },
        steps=[
            psi,
            standardized,
            step({"normscope.PowerNorm": lambda x, eps: real(x, eps).result})(affine),
            gradient,
            gradient_of_x,
            new_pull,
            batch_square,
            new_square,
            second_result,
            second_gradient_of_x,
        ],
        axes=axis_names(x, "b s d"),
    )
