"""Noise after a norm: it takes away what the norm gave, the same mean and variance at every step."""

import torch
from torch import Tensor, nn

MEAN, SCALE, SCATTER = 0.5, 1.25, 0.1
"""How far a feature's mean may lie from 0, how large its scale may be, and how far single values scatter about both."""


class Noise(nn.Module):
    """New noise at every step, with a mean and a scale for each feature that are drawn anew each time.

    Formula:
        mu_c ~ U(-0.5, 0.5), sigma_c ~ U(1, 1.25)                       for each feature c, at every step
        m ~ U(mu_c - 0.1, mu_c + 0.1), s ~ N(sigma_c, 0.1)              for each value of it, by themselves
        y = s x + m

    Shapes:
        x: (n, c, h, w). y: the same. In eval mode y = x.

    Paper:
        Santurkar et al. 2018, "How Does Batch Normalization Help Optimization?", the appendix on noisy BatchNorm.
    """

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        mean = torch.empty(1, x.shape[1], 1, 1).uniform_(-MEAN, MEAN)
        scale = torch.empty(1, x.shape[1], 1, 1).uniform_(1.0, SCALE)
        shifts = mean + torch.empty_like(x).uniform_(-SCATTER, SCATTER)
        scales = scale + SCATTER * torch.randn_like(x)
        return scales * x + shifts
