"""The four steps that LayerNorm, BatchNorm and InstanceNorm share, over axes of their own; and LayerNorm."""

import math
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normscope.blocks.norm import LayerNorm
from normscope.learning.checks import axis_names, check_eps, check_rank
from normscope.learning.lesson import Lesson, StepFunction, step

Axes = tuple[int, ...]
References = Mapping[str, Callable[..., Tensor]]


def mean(x: Tensor, over: Axes) -> Tensor:
    """Where the numbers lie: add up the {count} that share a mean, along the axes {over}, and divide by {count}."""
    return x.mean(over, keepdim=True)


def variance(x: Tensor, mean: Tensor, over: Axes) -> Tensor:
    """How widely they are spread: the mean of their squared distances from the mean. (Divided by {count} and not
    by one less: norms use the biased variance.)"""
    return (x - mean).square().mean(over, keepdim=True)


def standardised(x: Tensor, mean: Tensor, variance: Tensor, eps: float) -> Tensor:
    """Centre, and divide by the root of the variance: now the mean is 0 and the spread is 1. The small eps keeps the
    division safe where all the numbers are equal and the variance is 0."""
    return (x - mean) / torch.sqrt(variance + eps)


def result(standardised: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Stretch and shift by numbers that are learnt, so that the model can take back what it does not like. A new layer
    starts with a gain of 1 and a bias of 0, which change nothing."""
    return standardised * weight + bias


def standardization_steps(bare: References, layers: References) -> list[StepFunction]:
    """Mean, variance, standardise, affine, with who else computes the last two."""
    return [
        step({"torch.var_mean": lambda x, over: torch.var_mean(x, over, correction=0, keepdim=True)[1]})(mean),
        step({"torch.var_mean": lambda x, over: torch.var_mean(x, over, correction=0, keepdim=True)[0]})(variance),
        step(bare)(standardised),
        step(layers)(result),
    ]


def count_along(x: Tensor, over: Axes) -> int:
    """How many numbers share a mean."""
    return math.prod(x.shape[axis] for axis in over)


@step()
def spread(result: Tensor) -> Tensor:
    """Proof: the standard deviation of every row of the result. It is 1 but for what eps takes away, or 0 where a
    row had no spread at all."""
    return result.std(-1, correction=0)


EXAMPLE = ((1.0, 2.0, 3.0, 4.0, 5.0), (10.0, 20.0, 30.0, 40.0, 50.0), (0.5, 0.5, 0.5, 0.5, 0.5))
"""Three samples of five features. The second is ten times the first; the third has no spread."""


def layernorm(x: Tensor | None, eps: float = 1e-5) -> Lesson:
    own = x is not None
    x = torch.tensor(EXAMPLE) if x is None else check_rank(x, "LayerNorm", least=1)
    check_eps(eps)
    features, over = x.shape[-1], (-1,)
    remark = "" if own else " Watch the second row come out as the first, and the third survive its variance of 0."
    steps = standardization_steps(
        {"torch.nn.functional.layer_norm": lambda x, eps: F.layer_norm(x, x.shape[-1:], eps=eps)},
        {
            "torch.nn.LayerNorm": lambda x, eps: nn.LayerNorm(x.shape[-1], eps)(x),
            "normscope.LayerNorm": lambda x, eps: LayerNorm(x.shape[-1], eps)(x),
        },
    )
    return Lesson(
        title="LayerNorm, over ... [d]",
        summary=f"""Every row, which in a transformer is one token, is centred and scaled by its own mean and
        variance. No row sees another, so it does not matter how large the batch is, or what the other words
        are.{remark}""",
        given={
            "x": x,
            "weight": torch.ones(features),
            "bias": torch.zeros(features),
            "eps": eps,
            "over": over,
            "count": count_along(x, over),
        },
        steps=[*steps, spread],
        axes=axis_names(x, "b s d"),
        hidden=frozenset({"count"}),
    )
