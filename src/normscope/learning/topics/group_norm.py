"""GroupNorm: normalize groups of channels; between InstanceNorm and LayerNorm."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normscope.blocks.norm import GroupNorm
from normscope.errors import ShapeError
from normscope.learning import norm_steps
from normscope.learning.inputs import IMAGE_AXES, check_divisor, needs_rank
from normscope.learning.lesson import Lesson, Step, Topic
from normscope.learning.norm_steps import Dims, has_positions

GROUPED = "n g c h w"


@Step(axes=GROUPED)
def grouped(x: Tensor, groups: int) -> Tensor:
    """Split the channels into {groups} groups of adjacent channels. Only the shape changes."""
    return x.reshape(len(x), groups, -1, *x.shape[2:])


@Step(
    {"torch.var_mean": lambda grouped, dims: torch.var_mean(grouped, dims, correction=0, keepdim=True)[1]}, axes=GROUPED
)
def mean(grouped: Tensor, dims: Dims) -> Tensor:
    """One mean per group and sample, over {count} values: the channels of the group and their positions."""
    return grouped.mean(dims, keepdim=True)


@Step(
    {"torch.var_mean": lambda grouped, dims: torch.var_mean(grouped, dims, correction=0, keepdim=True)[0]}, axes=GROUPED
)
def variance(grouped: Tensor, mean: Tensor, dims: Dims) -> Tensor:
    """Variance of each group."""
    return (grouped - mean).square().mean(dims, keepdim=True)


@Step({"torch.nn.functional.group_norm": lambda x, groups, eps: F.group_norm(x, groups, eps=eps)})
def standardized(x: Tensor, grouped: Tensor, mean: Tensor, variance: Tensor, eps: float) -> Tensor:
    """Center and scale each group, then restore the shape of the input."""
    centered = grouped - mean
    return (centered / torch.sqrt(variance + eps)).reshape(x.shape)


result = Step(
    {
        "torch.nn.GroupNorm": lambda x, groups, eps: nn.GroupNorm(groups, x.shape[1], eps)(x),
        "normscope.GroupNorm": lambda x, groups, eps: GroupNorm(groups, x.shape[1], eps)(x),
    }
)(norm_steps.result)


@Step({"torch.nn.functional.instance_norm": lambda x, eps: F.instance_norm(x, eps=eps)}, when=has_positions)
def one_channel_per_group(x: Tensor, eps: float) -> Tensor:
    """With one channel per group, GroupNorm is InstanceNorm."""
    return F.group_norm(x, num_groups=x.shape[1], eps=eps)


@Step({"torch.nn.functional.layer_norm": lambda x, eps: F.layer_norm(x, x.shape[1:], eps=eps)})
def single_group(x: Tensor, eps: float) -> Tensor:
    """With a single group, GroupNorm is LayerNorm over n [c h w], as in convnets."""
    return F.group_norm(x, num_groups=1, eps=eps)


def default_groups(x: Tensor) -> int:
    """Return the smallest number of groups above one with more than one value each; otherwise one."""
    channels, numbers = x.shape[1], x[0].numel()
    return next((size for size in range(2, channels + 1) if channels % size == 0 and numbers > size), 1)


@Topic(
    "normalize groups of channels of each sample",
    title="GroupNorm, over n (g [c]) [...]",
    example=torch.arange(16.0).reshape(1, 4, 2, 2).tolist(),
    check=needs_rank("GroupNorm", 2, example="[[1, 2, 3, 4]]"),
    axes=IMAGE_AXES,
)
def groupnorm(x: Tensor, eps: float = 1e-5, groups: int | None = None) -> Lesson:
    """The channels of each sample are split into groups, and each group is centered and scaled by its own mean and
    variance. The extremes are InstanceNorm (one channel per group) and LayerNorm (one group). Samples are independent
    of each other. Weight and bias are per channel, not per group."""
    groups = check_divisor("groups", f"{x.shape[1]} channels are", x.shape[1], default_groups(x), groups)
    if x.numel() == x.shape[0] * groups and x.shape[0] == 1:
        raise ShapeError(
            f"a tensor of shape {tuple(x.shape)} has one value per group ({groups} groups), with variance 0"
            f"\nfix: fewer groups, or more channels or positions"
        )
    given = norm_steps.norm_inputs(x, norm_steps.channel_shape(x), eps, tuple(range(2, x.dim() + 1)))
    return Lesson({"x": x, "groups": groups, **given}, {"count": x[0].numel() // groups})
