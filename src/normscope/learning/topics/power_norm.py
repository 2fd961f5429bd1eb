"""PowerNorm: normalize by a running mean square, with an approximate backward pass."""

from typing import NamedTuple

import torch
from torch import Tensor

from normscope.blocks.norm import PowerNorm
from normscope.learning import norm_steps
from normscope.learning.inputs import TEXT_AXES, needs_rank
from normscope.learning.lesson import Lesson, Step, Topic
from normscope.learning.norm_steps import Dims
from normscope.learning.topics.rms_norm import TOKENS


class LayerRun(NamedTuple):
    """Output, input gradient and running statistics of the layer after a batch."""

    result: Tensor
    grad: Tensor
    square: Tensor
    nu: Tensor


def run_layer(x: Tensor, eps: float, batches: int = 1) -> LayerRun:
    """Run normscope.PowerNorm on the same batch `batches` times, with the loss sum(y^2) / 2."""
    layer = PowerNorm(x.shape[-1], eps)
    for _ in range(batches):
        leaf = x.clone().requires_grad_()
        y = layer(leaf)
        torch.autograd.backward(y.square().sum() / 2)
    assert leaf.grad is not None
    return LayerRun(y, leaf.grad, layer.get_buffer("running_square"), layer.get_buffer("running_nu"))


@Step(axes="d")
def psi(running_square: Tensor, eps: float) -> Tensor:
    """Divisor: the root of the running mean square of earlier batches, which is 1 in a new layer."""
    return torch.sqrt(running_square + eps)


@Step()
def standardized(x: Tensor, psi: Tensor) -> Tensor:
    """Divide. Nothing is centered, and the statistics of this batch are not used: an unusual batch does not affect its
    own output."""
    return x / psi


result = Step({"normscope.PowerNorm": lambda x, eps: run_layer(x, eps).result})(norm_steps.result)


@Step()
def grad(result: Tensor, weight: Tensor) -> Tensor:
    """Backward. With the loss sum(result^2) / 2, the gradient of each output is the output itself; that of the
    standardized values is the same times the weight."""
    return result * weight


@Step({"normscope.PowerNorm, backward": lambda x, eps: run_layer(x, eps).grad})
def x_grad(grad: Tensor, running_nu: Tensor, standardized: Tensor, psi: Tensor) -> Tensor:
    """psi comes from earlier batches, so no gradient flows through it. Instead the backward pass subtracts a running
    estimate of that gradient, running_nu (nu in the paper), which starts at 0."""
    return (grad - running_nu * standardized) / psi


@Step({"normscope.PowerNorm's buffer": lambda x, eps: run_layer(x, eps).nu}, axes="d")
def new_nu(running_nu: Tensor, grad: Tensor, standardized: Tensor, dims: Dims) -> Tensor:
    """Update running_nu with a tenth of the mean product of this batch's gradient and standardized values."""
    power = standardized.square().mean(dims)
    product = (grad * standardized).mean(dims)
    return running_nu * (1 - 0.1 * power) + 0.1 * product


@Step(axes="d")
def batch_mean_square(x: Tensor, dims: Dims) -> Tensor:
    """Mean square of each feature of this batch, over all tokens."""
    return x.square().mean(dims)


@Step({"normscope.PowerNorm's buffer": lambda x, eps: run_layer(x, eps).square}, axes="d")
def new_square(running_square: Tensor, batch_mean_square: Tensor) -> Tensor:
    """Update the running mean square for the next batch: 0.9 times the old value plus 0.1 times the batch's."""
    return 0.9 * running_square + 0.1 * batch_mean_square


@Step({"normscope.PowerNorm, second batch": lambda x, eps: run_layer(x, eps, 2).result})
def second_result(x: Tensor, new_square: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """The same batch again is divided by the updated running statistics, and its scale is closer to 1."""
    return x / torch.sqrt(new_square + eps) * weight + bias


@Step({"normscope.PowerNorm, second backward": lambda x, eps: run_layer(x, eps, 2).grad})
def second_x_grad(
    x: Tensor, second_result: Tensor, new_nu: Tensor, new_square: Tensor, weight: Tensor, eps: float
) -> Tensor:
    """Backward: now running_nu is no longer 0 and corrects the gradient."""
    new_psi = torch.sqrt(new_square + eps)
    correction = new_nu * x / new_psi
    return (second_result * weight - correction) / new_psi


@Topic(
    "BatchNorm for text, by a running mean square",
    title="PowerNorm, over [...] d",
    example=TOKENS,
    check=needs_rank("PowerNorm", 2),
    axes=TEXT_AXES,
)
def powernorm(x: Tensor, eps: float = 1e-5) -> Lesson:
    """BatchNorm for text. Each feature is divided by the root of its mean square over all tokens: not that of the
    current batch, which fluctuates strongly for text, but a running estimate from earlier batches, in training, too.
    There is no centering, and the backward pass is an approximation (Shen et al. 2020)."""
    one, zero = torch.ones(x.shape[-1]), torch.zeros(x.shape[-1])
    state = {"x": x, "running_square": one, "running_nu": zero}
    return Lesson({**state, "weight": one, "bias": zero, "eps": eps, "dims": tuple(range(x.dim() - 1))})
