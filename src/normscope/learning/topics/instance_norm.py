"""InstanceNorm: normalize each channel of each sample."""

import torch.nn.functional as F
from torch import Tensor, nn

from normscope.blocks.norm import InstanceNorm
from normscope.learning import norm_steps
from normscope.learning.inputs import IMAGE_AXES, needs_rank
from normscope.learning.lesson import Lesson, Step, Topic
from normscope.learning.norm_steps import IMAGES, channel_lesson, torch_layers

mean, variance = norm_steps.mean, norm_steps.variance
standardized = Step({"torch.nn.functional.instance_norm": lambda x, eps: F.instance_norm(x, eps=eps)})(
    norm_steps.standardized
)
result = Step(
    {
        **torch_layers({nn.InstanceNorm1d: (3,), nn.InstanceNorm2d: (4,), nn.InstanceNorm3d: (5,)}),
        "normscope.InstanceNorm": lambda x, eps: InstanceNorm(x.shape[1], eps, affine=True)(x),
    }
)(norm_steps.result)


@Topic(
    "instancenorm",
    "normalize each channel of each sample",
    title="InstanceNorm, over n c [...]",
    description="""Each channel of each sample is centered and scaled over its positions alone. This removes brightness
    and contrast, the style of an image, and keeps its shapes. (In torch, weight and bias are off unless
    affine=True.)""",
    example=IMAGES,
    check=needs_rank("InstanceNorm", 3),
    axes=IMAGE_AXES,
    digits=6,
)
def instancenorm(x: Tensor, eps: float = 1e-5) -> Lesson:
    return channel_lesson("InstanceNorm", x, eps, dims=tuple(range(2, x.dim())), show_count=False)
