"""LayerNorm, and the four steps that it shares with BatchNorm and InstanceNorm."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normscope.blocks.norm import LayerNorm
from normscope.learning.checks import axis_names, check_eps, check_rank
from normscope.learning.lesson import Lesson, StepFunction, step

Axes = tuple[int, ...]
References = Mapping[str, Callable[..., Tensor]]


def mean(x: Tensor, dims: Axes) -> Tensor:
    """Mean of the {count} values along dims {dims}."""
    return x.mean(dims, keepdim=True)


def variance(x: Tensor, mean: Tensor, dims: Axes) -> Tensor:
    """Variance: the mean squared deviation from the mean. Norms use the biased variance, divided by {count}."""
    return (x - mean).square().mean(dims, keepdim=True)


def standardized(x: Tensor, mean: Tensor, variance: Tensor, eps: float) -> Tensor:
    """Subtract the mean and divide by the standard deviation: the mean becomes 0 and the standard deviation 1. eps
    avoids division by zero when all values are equal."""
    return (x - mean) / torch.sqrt(variance + eps)


def result(standardized: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Scale and shift by learned parameters, so that the model can undo the normalization. They start at weight = 1 and
    bias = 0, which change nothing."""
    return standardized * weight + bias


def standardization_steps(bare: References, layers: References) -> list[StepFunction]:
    """Return the steps mean, variance, standardize and affine, with references for the last two."""
    return [
        step({"torch.var_mean": lambda x, dims: torch.var_mean(x, dims, correction=0, keepdim=True)[1]})(mean),
        step({"torch.var_mean": lambda x, dims: torch.var_mean(x, dims, correction=0, keepdim=True)[0]})(variance),
        step(bare)(standardized),
        step(layers)(result),
    ]


def norm_inputs(x: Tensor, affine_shape: Axes, eps: float, dims: Axes, count: int) -> dict[str, Any]:
    """Return the inputs of the steps of a norm: weight and bias of a new layer, eps, and the reduced dimensions."""
    check_eps(eps)
    return {
        "x": x,
        "weight": torch.ones(affine_shape),
        "bias": torch.zeros(affine_shape),
        "eps": eps,
        "dims": dims,
        "count": count,
    }


def channel_shape(x: Tensor) -> Axes:
    """Return the shape that broadcasts one value per channel over images."""
    return (1, x.shape[1], *(1,) * (x.dim() - 2))


def count_along(x: Tensor, dims: Axes) -> int:
    """Return the number of values that share a mean."""
    return math.prod(x.shape[axis] for axis in dims)


@step()
def output_std(result: Tensor) -> Tensor:
    """Check: the standard deviation of each output row is 1 up to eps, or 0 for a row without variance."""
    return result.std(-1, correction=0)


EXAMPLE = ((1.0, 2.0, 3.0, 4.0, 5.0), (10.0, 20.0, 30.0, 40.0, 50.0), (0.5, 0.5, 0.5, 0.5, 0.5))
"""Three samples of five features. The second is ten times the first; the third is constant."""


def layernorm(x: Tensor | None, eps: float = 1e-5) -> Lesson:
    custom = x is not None
    x = torch.tensor(EXAMPLE) if x is None else check_rank(x, "LayerNorm", least=1)
    dims = (-1,)
    note = (
        ""
        if custom
        else " The second row gives the same output as the first; the third, with variance 0, stays finite."
    )
    steps = standardization_steps(
        {"torch.nn.functional.layer_norm": lambda x, eps: F.layer_norm(x, x.shape[-1:], eps=eps)},
        {
            "torch.nn.LayerNorm": lambda x, eps: nn.LayerNorm(x.shape[-1], eps)(x),
            "normscope.LayerNorm": lambda x, eps: LayerNorm(x.shape[-1], eps)(x),
        },
    )
    return Lesson(
        title="LayerNorm, over ... [d]",
        summary=f"""Each row (in a transformer: one token) is centered and scaled by its own mean and variance. Rows are
        independent of each other, so neither the batch size nor the other tokens matter.{note}""",
        given=norm_inputs(x, x.shape[-1:], eps, dims, x.shape[-1]),
        steps=[*steps, output_std],
        axes=axis_names(x, "b s d"),
        hidden=("count",),
    )
