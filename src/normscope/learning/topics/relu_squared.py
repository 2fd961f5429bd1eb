"""ReLU squared, next to ReLU and GELU."""

import torch
import torch.nn.functional as F
from torch import Tensor

from normscope.blocks.mlp import relu2 as real_relu2
from normscope.learning.checks import check_rank
from normscope.learning.lesson import Lesson, step

EXAMPLE = (-5.0, -2.0, 0.0, 0.1, 0.5, 1.0, 2.0, 3.0)


@step({"torch.nn.functional.relu": lambda x: F.relu(x)})
def relu(x: Tensor) -> Tensor:
    """A doorkeeper: what is below zero becomes 0, all else passes."""
    return x.clamp(min=0)


@step(
    {
        "torch's relu(x).square()": lambda x: F.relu(x).square(),
        "normscope's relu2": lambda x: real_relu2(x),
    }
)
def result(relu: Tensor) -> Tensor:
    """Square what passed. Below 1 it shrinks (0.5 becomes 0.25), above 1 it grows (3 becomes 9)."""
    return relu * relu


@step()
def gained(result: Tensor, relu: Tensor) -> Tensor:
    """What the square changes against plain ReLU: weak signals are muffled, strong ones amplified, and 1 is where they
    meet."""
    return result - relu


@step({"torch.nn.functional.gelu": lambda x: F.gelu(x)})
def gelu(x: Tensor) -> Tensor:
    """For comparison GELU, which GPT-2 has (in an approximation): it weighs x by the chance that a normal number is
    smaller. Smooth, and left of zero a little below it."""
    return x * 0.5 * (1 + torch.erf(x / 2**0.5))


@step(columns=("x", "relu", "relu^2", "gelu"), axes="")
def side_by_side(x: Tensor, relu: Tensor, result: Tensor, gelu: Tensor) -> Tensor:
    """All of them side by side, a row for each number."""
    return torch.stack((x, relu, result, gelu), -1).reshape(-1, 4)


def relu2(x: Tensor | None) -> Lesson:
    x = torch.tensor(EXAMPLE) if x is None else check_rank(x, "ReLU^2", least=1)
    return Lesson(
        title="ReLU^2",
        summary="""The activation of an MLP bends the line: without one, any number of layers would be a single
        linear one. ReLU^2 is 0 below zero, which keeps most neurons silent, and a parabola above, which muffles
        weak signals and rewards strong ones. It needs no exp and no tanh.""",
        given={"x": x},
        steps=[relu, result, gained, gelu, side_by_side],
    )
