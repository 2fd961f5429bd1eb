"""BatchNorm and InstanceNorm: normalize each channel, over the batch or per sample."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normscope.blocks.norm import BatchNorm, InstanceNorm
from normscope.errors import ShapeError
from normscope.learning.checks import check_rank, image_axis_names
from normscope.learning.lesson import Lesson, step
from normscope.learning.topics.layer_norm import (
    References,
    channel_shape,
    count_along,
    norm_inputs,
    standardization_steps,
)

IMAGES = (
    (((0.1, 0.2), (0.3, 0.4)), ((1.0, 0.9), (1.2, -1.1)), ((1.1, 0.3), (-0.6, 0.2))),
    (((0.3, 0.8), (-0.2, -0.3)), ((-0.2, 2.1), (1.1, 0.2)), ((0.4, 0.7), (-2.1, 0.5))),
)
"""Two images of three channels, each two by two pixels."""

BATCH = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
INSTANCE = {3: nn.InstanceNorm1d, 4: nn.InstanceNorm2d, 5: nn.InstanceNorm3d}
"""torch's layers by number of dimensions; it has none for more."""


@step({"normscope.BatchNorm's buffer": lambda x, eps: _after_one_batch(x, eps).get_buffer("running_mean")}, axes="c")
def running_mean(mean: Tensor) -> Tensor:
    """Update the running mean, which inference uses in place of batch statistics: 0.9 times the old value (0 in a new
    layer) plus 0.1 times the batch mean."""
    return 0.9 * 0 + 0.1 * mean.flatten()


@step({"normscope.BatchNorm's buffer": lambda x, eps: _after_one_batch(x, eps).get_buffer("running_var")}, axes="c")
def running_var(variance: Tensor, count: int) -> Tensor:
    """The same for the running variance, which starts at 1. Only here the unbiased variance is used: divided by
    {count} - 1."""
    unbiased = variance.flatten() * count / (count - 1)
    return 0.9 * 1 + 0.1 * unbiased


@step({"torch.nn.functional.instance_norm": lambda x, eps: F.instance_norm(x[:1], eps=eps)})
def batch_of_one(x: Tensor, dims: tuple[int, ...], eps: float) -> Tensor:
    """With a batch of one sample, only the positions of that sample share a mean: BatchNorm of one sample is
    InstanceNorm."""
    one = x[:1]
    var, mean = torch.var_mean(one, dims, correction=0, keepdim=True)
    return (one - mean) / torch.sqrt(var + eps)


def batchnorm(x: Tensor | None, eps: float = 1e-5) -> Lesson:
    x = torch.tensor(IMAGES) if x is None else check_rank(x, "BatchNorm", 2, example="[[1, 2], [3, 4]]")
    dims = (0, *range(2, x.dim()))
    steps = standardization_steps(
        {"torch.nn.functional.batch_norm": lambda x, eps: F.batch_norm(x, None, None, training=True, eps=eps)},
        {
            **_torch_layer(BATCH.get(x.dim())),
            "normscope.BatchNorm": lambda x, eps: BatchNorm(x.shape[1], eps)(x),
        },
    )
    has_positions = count_along(x, dims[1:]) > 1
    return Lesson(
        title="BatchNorm, over [n] c [...]",
        summary="""Each channel is centered and scaled by its mean and variance over all samples of the batch and all
        positions. So BatchNorm needs a batch that is large enough for good statistics, and running statistics for
        inference on single samples.""",
        given=_given(x, dims, eps, "BatchNorm"),
        steps=[*steps, running_mean, running_var, *([batch_of_one] if has_positions else [])],
        axes=image_axis_names(x),
        digits=6,
    )


def instancenorm(x: Tensor | None, eps: float = 1e-5) -> Lesson:
    x = torch.tensor(IMAGES) if x is None else check_rank(x, "InstanceNorm", least=3)
    dims = tuple(range(2, x.dim()))
    steps = standardization_steps(
        {"torch.nn.functional.instance_norm": lambda x, eps: F.instance_norm(x, eps=eps)},
        {
            **_torch_layer(INSTANCE.get(x.dim())),
            "normscope.InstanceNorm": lambda x, eps: InstanceNorm(x.shape[1], eps, affine=True)(x),
        },
    )
    return Lesson(
        title="InstanceNorm, over n c [...]",
        summary="""Each channel of each sample is centered and scaled over its positions alone. This removes brightness
        and contrast, the style of an image, and keeps its shapes. (In torch, weight and bias are off unless
        affine=True.)""",
        given=_given(x, dims, eps, "InstanceNorm"),
        steps=steps,
        axes=image_axis_names(x),
        digits=6,
        hidden=("count",),
    )


def _given(x: Tensor, dims: tuple[int, ...], eps: float, layer: str) -> dict[str, Any]:
    count = count_along(x, dims)
    if count < 2:
        raise ShapeError(
            f"{layer} needs more than one value per mean, but a tensor of shape {tuple(x.shape)} has only one, with "
            f'variance 0\nfix: give more samples or positions, for instance --input "{_larger_example(x)}"'
        )
    return norm_inputs(x, channel_shape(x), eps, dims, count)


def _larger_example(x: Tensor) -> str:
    return "[[1, 2], [3, 4]]" if x.dim() == 2 else "[[[1, 2], [3, 4]]]"


def _torch_layer(layer: type[nn.Module] | None) -> References:
    if layer is None:
        return {}
    return {f"torch.nn.{layer.__name__}": lambda x, eps: layer(x.shape[1], eps, affine=True)(x)}


def _after_one_batch(x: Tensor, eps: float) -> BatchNorm:
    """Return a new layer after one training batch."""
    layer = BatchNorm(x.shape[1], eps)
    layer(x)
    return layer
