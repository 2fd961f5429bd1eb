"""ReLU squared, compared with ReLU and GELU."""

import torch
import torch.nn.functional as F
from torch import Tensor

from normscope.blocks.activations import relu2 as real_relu2
from normscope.learning.inputs import needs_rank
from normscope.learning.lesson import Lesson, Step, Topic


@Step({"torch.nn.functional.relu": lambda x: F.relu(x)})
def relu(x: Tensor) -> Tensor:
    """ReLU: negative values become 0, all others pass."""
    return x.clamp(min=0)


@Step({"torch's relu(x).square()": lambda x: F.relu(x).square(), "normscope's relu2": real_relu2})
def result(relu: Tensor) -> Tensor:
    """Square. Values below 1 shrink (0.5 becomes 0.25), values above 1 grow (3 becomes 9)."""
    return relu * relu


@Step()
def change_from_relu(result: Tensor, relu: Tensor) -> Tensor:
    """Difference from plain ReLU: weak signals are reduced, strong ones amplified; both agree at 1."""
    return result - relu


@Step({"torch.nn.functional.gelu": lambda x: F.gelu(x)})
def gelu(x: Tensor) -> Tensor:
    """For comparison GELU, which GPT-2 uses (in an approximation): x times the probability that a standard normal value
    is smaller than x. It is smooth, and slightly negative left of zero."""
    return x * 0.5 * (1 + torch.erf(x / 2**0.5))


@Step(columns=("x", "relu", "relu^2", "gelu"), axes="")
def comparison(x: Tensor, relu: Tensor, result: Tensor, gelu: Tensor) -> Tensor:
    """All activations, one row per input."""
    return torch.stack((x, relu, result, gelu), -1).reshape(-1, 4)


@Topic(
    "ReLU squared, compared with ReLU and GELU",
    title="ReLU^2",
    example=(-5.0, -2.0, 0.0, 0.1, 0.5, 1.0, 2.0, 3.0),
    check=needs_rank("ReLU^2", 1),
)
def relu2(x: Tensor) -> Lesson:
    """An MLP needs a nonlinear activation: without one, any number of layers would be a single linear one. ReLU^2 is 0
    below zero, which keeps most neurons inactive, and a parabola above, which reduces weak signals and amplifies strong
    ones. It needs neither exp nor tanh."""
    return Lesson({"x": x})
