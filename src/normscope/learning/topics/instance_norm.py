"""InstanceNorm: normalize each channel of each sample."""

import torch.nn.functional as F
from torch import Tensor, nn

from normscope.blocks.norm import InstanceNorm
from normscope.learning import norm_steps
from normscope.learning.inputs import IMAGE_AXES, needs_rank
from normscope.learning.lesson import Lesson, Step, Topic
from normscope.learning.norm_steps import IMAGES, channel_lesson, layer_references

mean, variance = norm_steps.mean, norm_steps.variance
standardized = Step({"torch.nn.functional.instance_norm": lambda x, eps: F.instance_norm(x, eps=eps)})(
    norm_steps.standardized
)
torch_layers = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
result = Step(layer_references(*torch_layers, InstanceNorm, affine=True))(norm_steps.result)


@Topic(
    "normalize each channel of each sample",
    title="InstanceNorm, over n c [...]",
    example=IMAGES,
    check=needs_rank("InstanceNorm", 3),
    axes=IMAGE_AXES,
    digits=6,
)
def instancenorm(x: Tensor, eps: float = 1e-5) -> Lesson:
    """Each channel of each sample is centered and scaled over its positions alone. This removes brightness and
    contrast, the style of an image, and keeps its shapes. (In torch, weight and bias are off unless affine=True.)"""
    return channel_lesson("InstanceNorm", x, eps, dims=tuple(range(2, x.dim())), show_count=False)
