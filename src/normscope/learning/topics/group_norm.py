"""GroupNorm: normalize groups of channels; between InstanceNorm and LayerNorm."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normscope.blocks.norm import GroupNorm
from normscope.checks import is_integer
from normscope.errors import ConfigError, ShapeError
from normscope.learning.checks import check_rank, image_axis_names
from normscope.learning.lesson import Lesson, step
from normscope.learning.topics.layer_norm import Axes, channel_shape, count_along, norm_inputs, result

GROUPED = "n g c h w"


@step(axes=GROUPED)
def grouped(x: Tensor, groups: int) -> Tensor:
    """Split the channels into {groups} groups of adjacent channels. Only the shape changes."""
    return x.reshape(len(x), groups, -1, *x.shape[2:])


@step(
    {"torch.var_mean": lambda grouped, dims: torch.var_mean(grouped, dims, correction=0, keepdim=True)[1]}, axes=GROUPED
)
def mean(grouped: Tensor, dims: Axes) -> Tensor:
    """One mean per group and sample, over {count} values: the channels of the group and their positions."""
    return grouped.mean(dims, keepdim=True)


@step(
    {"torch.var_mean": lambda grouped, dims: torch.var_mean(grouped, dims, correction=0, keepdim=True)[0]},
    axes=GROUPED,
)
def variance(grouped: Tensor, mean: Tensor, dims: Axes) -> Tensor:
    """Variance of each group."""
    return (grouped - mean).square().mean(dims, keepdim=True)


@step({"torch.nn.functional.group_norm": lambda x, groups, eps: F.group_norm(x, groups, eps=eps)})
def standardized(x: Tensor, grouped: Tensor, mean: Tensor, variance: Tensor, eps: float) -> Tensor:
    """Center and scale each group, then restore the shape of the input."""
    centered = grouped - mean
    return (centered / torch.sqrt(variance + eps)).reshape(x.shape)


@step({"torch.nn.functional.instance_norm": lambda x, eps: F.instance_norm(x, eps=eps)})
def one_channel_per_group(x: Tensor, eps: float) -> Tensor:
    """With one channel per group, GroupNorm is InstanceNorm."""
    return F.group_norm(x, num_groups=x.shape[1], eps=eps)


@step({"torch.nn.functional.layer_norm": lambda x, eps: F.layer_norm(x, x.shape[1:], eps=eps)})
def single_group(x: Tensor, eps: float) -> Tensor:
    """With a single group, GroupNorm is LayerNorm over n [c h w], as in convnets."""
    return F.group_norm(x, num_groups=1, eps=eps)


def groupnorm(x: Tensor | None, eps: float = 1e-5, groups: int | None = None) -> Lesson:
    x = torch.arange(16.0).reshape(1, 4, 2, 2) if x is None else check_rank(x, "GroupNorm", 2, example="[[1, 2, 3, 4]]")
    channels = x.shape[1]
    groups = _default_groups(x) if groups is None else groups
    if not is_integer(groups) or channels % groups:
        divisors = ", ".join(str(size) for size in range(1, channels + 1) if channels % size == 0)
        raise ConfigError(
            f"{channels} channels are not divisible by groups={groups!r}\nfix: --groups with one of {divisors}"
        )
    if x.numel() == x.shape[0] * groups and x.shape[0] == 1:
        raise ShapeError(
            f"a tensor of shape {tuple(x.shape)} has one value per group ({groups} groups), with variance 0"
            f"\nfix: fewer groups, or more channels or positions"
        )
    dims = tuple(range(2, x.dim() + 1))
    layers = {
        "torch.nn.GroupNorm": lambda x, groups, eps: nn.GroupNorm(groups, x.shape[1], eps)(x),
        "normscope.GroupNorm": lambda x, groups, eps: GroupNorm(groups, x.shape[1], eps)(x),
    }
    has_positions = count_along(x, tuple(range(2, x.dim()))) > 1
    return Lesson(
        title="GroupNorm, over n (g [c]) [...]",
        summary="""The channels of each sample are split into groups, and each group is centered and scaled by its own
        mean and variance. The extremes are InstanceNorm (one channel per group) and LayerNorm (one group). Samples are
        independent of each other. Weight and bias are per channel, not per group.""",
        given={"x": x, "groups": groups, **norm_inputs(x, channel_shape(x), eps, dims, x[0].numel() // groups)},
        steps=[
            grouped,
            mean,
            variance,
            standardized,
            step(layers)(result),
            *([one_channel_per_group] if has_positions else []),
            single_group,
        ],
        axes=image_axis_names(x),
        hidden=("count",),
    )


def _default_groups(x: Tensor) -> int:
    """Return the smallest number of groups above one with more than one value each; otherwise one."""
    channels, numbers = x.shape[1], x[0].numel()
    return next((size for size in range(2, channels + 1) if channels % size == 0 and numbers > size), 1)
