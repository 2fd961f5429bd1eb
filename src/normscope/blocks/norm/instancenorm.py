"""InstanceNorm: statistics per channel, within each sample."""

from typing import Any

import torch
from torch import nn
from torch.nn.modules.instancenorm import _InstanceNorm

from normscope.blocks.norm.base import Device, ScopeText
from normscope.blocks.norm.channel_norm import _ChannelNorm


class InstanceNorm(_ChannelNorm, _InstanceNorm):  # type: ignore[misc]
    r"""Instance normalization: normalize each channel of each sample over its spatial positions.

    This removes brightness and contrast (the "style") from each channel of each image. As in torch, affine parameters
    and running statistics are off by default. `InstanceNorm` accepts batches of any rank; `InstanceNorm1d`,
    `InstanceNorm2d` and `InstanceNorm3d` check the rank as torch's layers do, and also accept a single sample. With
    momentum=None the running statistics are a cumulative average, as in BatchNorm; torch's layer does not update them.

    Formula:
        y = (x - mean) / sqrt(variance + eps) * weight + bias

    Scope:
        `n c [...]`

    Shapes:
        x: (N, C, ...). y: same as x. weight, bias, running_mean and running_var: (C).

    Example:
        >>> import torch
        >>> image = torch.rand(1, 3, 8, 8)
        >>> norm = InstanceNorm(3)
        >>> torch.allclose(norm(image), norm(image * 2 + 5), atol=1e-3)  # invariant to brightness and contrast
        True

    Paper:
        Ulyanov, Vedaldi and Lempitsky 2016, "Instance Normalization: The Missing Ingredient for Fast Stylization".
    """

    default_scope = "n c [...]"
    _takes_samples = True
    _counts_batches = False

    def __init__(
        self,
        num_features: int | ScopeText,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        device: Device = None,
        dtype: torch.dtype | None = None,
        *,
        bias: bool = True,
        **sizes: Any,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias, **sizes)

    def _uses_running_stats(self) -> bool:
        return self.track_running_stats and not self.training  # like torch, also if it is set to False later


class InstanceNorm1d(InstanceNorm, nn.InstanceNorm1d):  # type: ignore[misc]
    """`InstanceNorm` over (N, C, L) or (C, L)."""

    ranks = (2, 3)


class InstanceNorm2d(InstanceNorm, nn.InstanceNorm2d):  # type: ignore[misc]
    """`InstanceNorm` over (N, C, H, W) or (C, H, W)."""

    ranks = (3, 4)


class InstanceNorm3d(InstanceNorm, nn.InstanceNorm3d):  # type: ignore[misc]
    """`InstanceNorm` over (N, C, D, H, W) or (C, D, H, W)."""

    ranks = (4, 5)
