"""Covariate shift: how far a training step moves the features of the same images."""

import copy

import torch
from torch import Tensor

from normscope.lab.trials.conv_stack import ConvStack

FeatureMoments = list[tuple[Tensor, Tensor]]
"""Mean and standard deviation of each feature, for every layer."""


@torch.no_grad()
def feature_moments(model: ConvStack, images: Tensor) -> FeatureMoments:
    """Moments in training mode, before the ReLU; of a copy, to leave the running statistics unchanged."""
    return [(x.mean(dim=(0, 2, 3)), x.std(dim=(0, 2, 3))) for x in copy.deepcopy(model).features(images)]


def shift_between(before: FeatureMoments, after: FeatureMoments) -> float:
    """Mean distance that the features moved in mean and standard deviation, in units of the latter.

    >>> one, two = torch.tensor([1.0]), torch.tensor([2.0])
    >>> shift_between([(one, two)], [(two, two)])
    0.5
    """
    moved = [
        torch.hypot(mean - old_mean, std - old_std) / old_std.clamp(min=1e-12)
        for (old_mean, old_std), (mean, std) in zip(before, after, strict=True)
    ]
    return torch.cat(moved).mean().item()
