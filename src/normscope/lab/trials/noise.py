"""Noise after a norm: it takes away what the norm gave, the same mean and variance at every step."""

import torch
from torch import Tensor, nn

MEAN, SCALE, SCATTER = 0.5, 1.25, 0.1
"""How far a feature's mean may lie from 0, how large its scale may be, and how far single values scatter about both."""
USUAL_SCALE = (1 + SCALE) / 2
"""The mean of all scales; that of all means is 0."""


class FeatureNoise(nn.Module):
    """New noise at every step, with a mean and a scale for each feature that are drawn anew each time.

    A feature is a channel, as it is for BatchNorm: mean and scale are the same for all pictures and places, and are
    just what BatchNorm has fixed. With a mean and a scale for each place, most of it would cancel within a channel, and
    little of the shift would come back.

    Formula:
        mu_c ~ U(-0.5, 0.5), sigma_c ~ U(1, 1.25)                       for each feature c, at every step
        m ~ U(mu_c - 0.1, mu_c + 0.1), s ~ N(sigma_c, 0.1)              for each value of it, by themselves
        y = s x + m
        In eval mode y = E[s] x + E[m] = 1.125 x: what comes after has never seen the scale 1.

    Shapes:
        x: (n, c, h, w). y: the same.

    Paper:
        Santurkar et al. 2018, "How Does Batch Normalization Help Optimization?", the appendix on noisy BatchNorm. It
        draws a mean and a scale for each unit, and leaves open whether a unit of a convolution is a channel.
    """

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return USUAL_SCALE * x
        mean = torch.empty(1, x.shape[1], 1, 1).uniform_(-MEAN, MEAN)
        scale = torch.empty(1, x.shape[1], 1, 1).uniform_(1.0, SCALE)
        shifts = mean + torch.empty_like(x).uniform_(-SCATTER, SCATTER)
        scales = scale + SCATTER * torch.randn_like(x)
        return scales * x + shifts


def expected_shift(points: int = 60) -> float:
    """How far the noise alone moves a feature of mean 0 and variance 1 from one step to the next, as `shift` has it.

    The feature's mean is then mu, and its variance sigma² + 0.1² + 0.1²/3: the scale's, its scatter's and that of the
    mean. The expectation is over two draws of both, on a grid.

    >>> round(expected_shift(), 3)
    0.317
    """
    middles = (torch.arange(points, dtype=torch.float64) + 0.5) / points
    means = MEAN * (2 * middles - 1)
    moved = (means[:, None] - means).flatten()[:, None, None]
    stds = ((1 + (SCALE - 1) * middles) ** 2 + SCATTER**2 * (1 + 1 / 3)).sqrt()
    return float((torch.hypot(moved, stds[:, None] - stds) / stds).mean())
