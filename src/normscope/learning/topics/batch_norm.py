"""BatchNorm: normalize each channel over the batch."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normscope.blocks.norm import BatchNorm
from normscope.learning import norm_steps
from normscope.learning.inputs import IMAGE_AXES, needs_rank
from normscope.learning.lesson import Lesson, Step, Topic
from normscope.learning.norm_steps import IMAGES, channel_lesson, has_positions, layer_references


def after_one_batch(x: Tensor, eps: float) -> BatchNorm:
    """Return a new layer after one training batch."""
    layer = BatchNorm(x.shape[1], eps)
    layer(x)
    return layer


mean, variance = norm_steps.mean, norm_steps.variance
standardized = Step(
    {"torch.nn.functional.batch_norm": lambda x, eps: F.batch_norm(x, None, None, training=True, eps=eps)}
)(norm_steps.standardized)
result = Step(layer_references(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, BatchNorm))(norm_steps.result)


@Step({"normscope.BatchNorm's buffer": lambda x, eps: after_one_batch(x, eps).get_buffer("running_mean")}, axes="c")
def running_mean(mean: Tensor) -> Tensor:
    """Update the running mean, which inference uses in place of batch statistics: 0.9 times the old value (0 in a new
    layer) plus 0.1 times the batch mean."""
    return 0.9 * 0 + 0.1 * mean.flatten()


@Step({"normscope.BatchNorm's buffer": lambda x, eps: after_one_batch(x, eps).get_buffer("running_var")}, axes="c")
def running_var(variance: Tensor, count: int) -> Tensor:
    """The same for the running variance, which starts at 1. Only here the unbiased variance is used: divided by
    {count} - 1."""
    unbiased = variance.flatten() * count / (count - 1)
    return 0.9 * 1 + 0.1 * unbiased


@Step({"torch.nn.functional.instance_norm": lambda x, eps: F.instance_norm(x[:1], eps=eps)}, when=has_positions)
def batch_of_one(x: Tensor, dims: tuple[int, ...], eps: float) -> Tensor:
    """With a batch of one sample, only the positions of that sample share a mean: BatchNorm of one sample is
    InstanceNorm."""
    one = x[:1]
    var, mean = torch.var_mean(one, dims, correction=0, keepdim=True)
    return (one - mean) / torch.sqrt(var + eps)


@Topic(
    "normalize each channel over the batch",
    title="BatchNorm, over [n] c [...]",
    example=IMAGES,
    check=needs_rank("BatchNorm", 2, example="[[1, 2], [3, 4]]"),
    axes=IMAGE_AXES,
    digits=6,
)
def batchnorm(x: Tensor, eps: float = 1e-5) -> Lesson:
    """Each channel is centered and scaled by its mean and variance over all samples of the batch and all positions. So
    BatchNorm needs a batch that is large enough for good statistics, and running statistics for inference on single
    samples."""
    return channel_lesson("BatchNorm", x, eps, dims=(0, *range(2, x.dim())), show_count=True)
