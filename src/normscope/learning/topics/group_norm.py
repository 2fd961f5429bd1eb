"""GroupNorm: groups of channels, between InstanceNorm and LayerNorm."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normscope.blocks.norm import GroupNorm
from normscope.checks import is_integer
from normscope.errors import ConfigError, ShapeError
from normscope.learning.checks import check_eps, check_rank, image_axis_names
from normscope.learning.lesson import Lesson, step
from normscope.learning.topics.layer_norm import Axes, count_along, result

GROUPED = "n g c h w"


@step(axes=GROUPED)
def grouped(x: Tensor, groups: int) -> Tensor:
    """Cut the channels into {groups} groups, neighbours together. No number changes; only the shape does."""
    return x.reshape(len(x), groups, -1, *x.shape[2:])


@step(
    {"torch.var_mean": lambda grouped, over: torch.var_mean(grouped, over, correction=0, keepdim=True)[1]}, axes=GROUPED
)
def mean(grouped: Tensor, over: Axes) -> Tensor:
    """One mean for each group of each sample, here of {count} numbers: the channels of the group and their
    positions."""
    return grouped.mean(over, keepdim=True)


@step(
    {"torch.var_mean": lambda grouped, over: torch.var_mean(grouped, over, correction=0, keepdim=True)[0]},
    axes=GROUPED,
)
def variance(grouped: Tensor, mean: Tensor, over: Axes) -> Tensor:
    """How widely each group is spread around its mean."""
    return (grouped - mean).square().mean(over, keepdim=True)


@step({"torch.nn.functional.group_norm": lambda x, groups, eps: F.group_norm(x, groups, eps=eps)})
def standardized(x: Tensor, grouped: Tensor, mean: Tensor, variance: Tensor, eps: float) -> Tensor:
    """Centre and scale every group, and put the channels side by side again."""
    centred = grouped - mean
    return (centred / torch.sqrt(variance + eps)).reshape(x.shape)


@step({"torch.nn.functional.instance_norm": lambda x, eps: F.instance_norm(x, eps=eps)})
def every_channel_alone(x: Tensor, eps: float) -> Tensor:
    """What if every channel is a group by itself? Then it is InstanceNorm."""
    return F.group_norm(x, num_groups=x.shape[1], eps=eps)


@step({"torch.nn.functional.layer_norm": lambda x, eps: F.layer_norm(x, x.shape[1:], eps=eps)})
def all_in_one(x: Tensor, eps: float) -> Tensor:
    """And if all the channels are one group? Then it is LayerNorm as convnets know it, over n [c h w]."""
    return F.group_norm(x, num_groups=1, eps=eps)


def groupnorm(x: Tensor | None, eps: float = 1e-5, groups: int | None = None) -> Lesson:
    x = torch.arange(16.0).reshape(1, 4, 2, 2) if x is None else check_rank(x, "GroupNorm", 2, example="[[1, 2, 3, 4]]")
    check_eps(eps)
    channels = x.shape[1]
    groups = _few_groups(x) if groups is None else groups
    if not is_integer(groups) or channels % groups:
        divisors = ", ".join(str(size) for size in range(1, channels + 1) if channels % size == 0)
        raise ConfigError(
            f"{channels} channels cannot be cut into groups={groups!r}\nfix: --groups with one of {divisors}"
        )
    if x.numel() == x.shape[0] * groups and x.shape[0] == 1:
        raise ShapeError(
            f"a tensor of shape {tuple(x.shape)} has one number for each of {groups} groups, whose variance is 0"
            f"\nfix: fewer groups, or more channels or positions"
        )
    over = tuple(range(2, x.dim() + 1))
    beside_channels = (1, channels, *(1,) * (x.dim() - 2))
    layers = {
        "torch.nn.GroupNorm": lambda x, groups, eps: nn.GroupNorm(groups, x.shape[1], eps)(x),
        "normscope.GroupNorm": lambda x, groups, eps: GroupNorm(groups, x.shape[1], eps)(x),
    }
    has_positions = count_along(x, tuple(range(2, x.dim()))) > 1
    return Lesson(
        title="GroupNorm, over n (g [c]) [...]",
        summary="""The channels of each sample are cut into groups, and every group is centred and scaled by its
        own mean and variance. It is a scale with InstanceNorm at one end (every channel alone) and LayerNorm at
        the other (all in one group), and it never looks at another sample. Gain and bias are one for each
        channel, not for each group.""",
        given={
            "x": x,
            "groups": groups,
            "weight": torch.ones(beside_channels),
            "bias": torch.zeros(beside_channels),
            "eps": eps,
            "over": over,
            "count": count_along(x, tuple(range(1, x.dim()))) // groups,
        },
        steps=[
            grouped,
            mean,
            variance,
            standardized,
            step(layers)(result),
            *([every_channel_alone] if has_positions else []),
            all_in_one,
        ],
        axes=image_axis_names(x),
        hidden=frozenset({"count"}),
    )


def _few_groups(x: Tensor) -> int:
    """The smallest number of groups above one that leaves each more than one number; one, if there is none."""
    channels, numbers = x.shape[1], x[0].numel()
    return next((size for size in range(2, channels + 1) if channels % size == 0 and numbers > size), 1)
