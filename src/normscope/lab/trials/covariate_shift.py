"""Covariate shift: how far a step of training moves what the layers give, on the same pictures."""

import copy

import torch
from torch import Tensor

from normscope.lab.trials.conv_stack import ConvStack

FeatureMoments = list[tuple[Tensor, Tensor]]
"""Of every layer, the mean and the standard deviation of each feature."""


@torch.no_grad()
def feature_moments(model: ConvStack, images: Tensor) -> FeatureMoments:
    """As they are in training, before the ReLU; of a copy, since a norm would remember these pictures as a batch."""
    return [(x.mean(dim=(0, 2, 3)), x.std(dim=(0, 2, 3))) for x in copy.deepcopy(model).features(images)]


def shift_between(before: FeatureMoments, after: FeatureMoments) -> float:
    """How far the features moved in mean and standard deviation, in units of the latter; the mean over all of them.

    >>> one, two = torch.tensor([1.0]), torch.tensor([2.0])
    >>> shift_between([(one, two)], [(two, two)])
    0.5
    """
    moved = [
        torch.hypot(mean - old_mean, std - old_std) / old_std.clamp(min=1e-12)
        for (old_mean, old_std), (mean, std) in zip(before, after, strict=True)
    ]
    return torch.cat(moved).mean().item()
