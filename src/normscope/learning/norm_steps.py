"""The steps that the norms share: mean, variance, standardize, affine."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from normscope.errors import ShapeError
from normscope.learning.lesson import Lesson, Step

Dims = tuple[int, ...]
References = dict[str, Callable[..., Tensor | None]]

IMAGES = (
    (((0.1, 0.2), (0.3, 0.4)), ((1.0, 0.9), (1.2, -1.1)), ((1.1, 0.3), (-0.6, 0.2))),
    (((0.3, 0.8), (-0.2, -0.3)), ((-0.2, 2.1), (1.1, 0.2)), ((0.4, 0.7), (-2.1, 0.5))),
)
"""Two images of three channels, each two by two pixels."""


@Step({"torch.var_mean": lambda x, dims: torch.var_mean(x, dims, correction=0, keepdim=True)[1]})
def mean(x: Tensor, dims: Dims) -> Tensor:
    """Mean of the {count} values along dims {dims}."""
    return x.mean(dims, keepdim=True)


@Step({"torch.var_mean": lambda x, dims: torch.var_mean(x, dims, correction=0, keepdim=True)[0]})
def variance(x: Tensor, mean: Tensor, dims: Dims) -> Tensor:
    """Variance: the mean squared deviation from the mean. Norms use the biased variance, divided by {count}."""
    return (x - mean).square().mean(dims, keepdim=True)


# Without @Step: each norm adds its own references.
def standardized(x: Tensor, mean: Tensor, variance: Tensor, eps: float) -> Tensor:
    """Subtract the mean and divide by the standard deviation: the mean becomes 0 and the standard deviation 1. eps
    avoids division by zero when all values are equal."""
    return (x - mean) / torch.sqrt(variance + eps)


def result(standardized: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Scale and shift by learned parameters, so that the model can undo the normalization. They start at weight = 1 and
    bias = 0, which change nothing."""
    return standardized * weight + bias


def norm_inputs(x: Tensor, affine_shape: Dims, eps: float, dims: Dims) -> dict[str, Any]:
    """Return the inputs of the steps of a norm: weight and bias of a new layer, eps, and the reduced dimensions."""
    weight, bias = torch.ones(affine_shape), torch.zeros(affine_shape)
    return {"x": x, "weight": weight, "bias": bias, "eps": eps, "dims": dims}


def channel_shape(x: Tensor) -> Dims:
    """Return the shape that broadcasts one value per channel over images."""
    return (1, x.shape[1], *(1,) * (x.dim() - 2))


def layer_references(*layers: type[nn.Module], axis: int = 1, **options: Any) -> References:
    """Return references to layers with one weight per index of an axis; BatchNorm2d and the like take one rank only."""
    ranks = {"1d": (2, 3), "2d": (4,), "3d": (5,)}

    def reference(layer: type[nn.Module]) -> Callable[[Tensor, float], Tensor | None]:
        fits = ranks.get(layer.__name__[-2:], range(99))
        return lambda x, eps: layer(x.shape[axis], eps, **options)(x) if x.dim() in fits else None

    packages = {True: "torch.nn", False: "normscope"}
    return {f"{packages[layer.__module__.startswith('torch.')]}.{layer.__name__}": reference(layer) for layer in layers}


def has_positions(x: Tensor) -> bool:
    """Whether images have more than one position."""
    return math.prod(x.shape[2:]) > 1


def channel_lesson(layer: str, x: Tensor, eps: float, dims: Dims, *, show_count: bool) -> Lesson:
    """Return the inputs of a norm with statistics of each channel over `dims`."""
    count = math.prod(x.shape[axis] for axis in dims)
    if count < 2:
        larger = "[[1, 2], [3, 4]]" if x.dim() == 2 else "[[[1, 2], [3, 4]]]"
        raise ShapeError(
            f"{layer} needs more than one value per mean, but a tensor of shape {tuple(x.shape)} has only one, with "
            f'variance 0\nfix: give more samples or positions, for instance --input "{larger}"'
        )
    given, counted = norm_inputs(x, channel_shape(x), eps, dims), {"count": count}
    return Lesson({**given, **counted}) if show_count else Lesson(given, counted)
