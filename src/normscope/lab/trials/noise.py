"""Noise after a norm that undoes its effect: mean and variance change at every step."""

import torch
from torch import Tensor, nn

MEAN, SCALE, SCATTER = 0.5, 1.25, 0.1
"""Bounds of a feature's mean and scale, and the scatter of single values around both."""
EXPECTED_SCALE = (1 + SCALE) / 2
"""The expected mean is 0."""


class FeatureNoise(nn.Module):
    """Noise with a mean and a scale per feature, drawn at every step.

    A feature is a channel, as in BatchNorm: mean and scale are the same for all images and positions, and are what
    BatchNorm standardizes. With a mean and a scale per position, most of the noise would cancel within a channel.

    Formula:
        mu_c ~ U(-0.5, 0.5), sigma_c ~ U(1, 1.25)                       for each feature c, at every step
        m ~ U(mu_c - 0.1, mu_c + 0.1), s ~ N(sigma_c, 0.1)              independently for each of its values
        y = s x + m
        In eval mode y = E[s] x + E[m] = 1.125 x: later layers have never seen the scale 1.

    Shapes:
        x: (n, c, h, w). y: the same.

    Paper:
        Santurkar et al. 2018, "How Does Batch Normalization Help Optimization?", the appendix on noisy BatchNorm. It
        draws a mean and a scale per unit, and does not say whether a unit of a convolution is a channel.
    """

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return EXPECTED_SCALE * x
        mean = torch.empty(1, x.shape[1], 1, 1).uniform_(-MEAN, MEAN)
        scale = torch.empty(1, x.shape[1], 1, 1).uniform_(1.0, SCALE)
        shifts = mean + torch.empty_like(x).uniform_(-SCATTER, SCATTER)
        scales = scale + SCATTER * torch.randn_like(x)
        return scales * x + shifts


def expected_shift(points: int = 60) -> float:
    """Expected shift per step, as in `shift_between`, of a feature of mean 0 and variance 1 with this noise.

    The feature's mean is then mu, and its variance sigma² + 0.1² + 0.1²/3: of the scale, its scatter and that of the
    mean. The expectation is over two draws of both, on a grid.

    >>> round(expected_shift(), 3)
    0.317
    """
    middles = (torch.arange(points, dtype=torch.float64) + 0.5) / points
    means = MEAN * (2 * middles - 1)
    moved = (means[:, None] - means).flatten()[:, None, None]
    stds = ((1 + (SCALE - 1) * middles) ** 2 + SCATTER**2 * (1 + 1 / 3)).sqrt()
    return float((torch.hypot(moved, stds[:, None] - stds) / stds).mean())
