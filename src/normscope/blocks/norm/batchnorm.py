"""BatchNorm: statistics per channel, over the batch."""

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from normscope.blocks.norm.channel_norm import _ChannelNorm


class BatchNorm(_ChannelNorm, _BatchNorm):  # type: ignore[misc] # torch's class, so that isinstance works
    r"""Batch normalization: normalize each channel over the batch and all spatial positions.

    In training mode the layer normalizes with the statistics of the batch and updates the running statistics; in eval
    mode it normalizes with the running statistics. `BatchNorm` accepts any number of spatial dimensions; `BatchNorm1d`,
    `BatchNorm2d` and `BatchNorm3d` check the rank as torch's layers do.

    Formula:
        y = (x - mean) / sqrt(variance + eps) * weight + bias
        running = (1 - momentum) * running + momentum * batch     (with the unbiased variance)

    Scope:
        `[n] c [...]`

    Shapes:
        x: (N, C) or (N, C, ...). y: same as x. weight, bias, running_mean and running_var: (C).

    Args:
        num_features: the number of channels C, or a scope such as "[n] c [...]" with the sizes as keyword arguments.
        eps: value added to the variance.
        momentum: weight of the newest batch in the running statistics; None for a cumulative average.
        affine: whether the layer has a learnable weight (and bias).
        track_running_stats: whether the layer keeps running statistics.
        bias: whether the affine parameters include a bias.
        sync: compute statistics over all ranks of torch.distributed's default group (as nn.SyncBatchNorm).

    Example:
        >>> import torch
        >>> norm = BatchNorm(3)
        >>> y = norm(torch.randn(8, 3, 5, 5) * 4 + 7)
        >>> y.mean((0, 2, 3)).abs().max().item() < 1e-6, norm.running_mean.round().tolist()
        (True, [1.0, 1.0, 1.0])

    Paper:
        Ioffe and Szegedy 2015, "Batch Normalization: Accelerating Deep Network Training by Reducing Internal
        Covariate Shift".
    """

    default_scope = "[n] c [...]"

    def _updates_running_stats(self) -> bool:
        return self.track_running_stats  # like torch: if it is set to False later, training doesn't update them


class BatchNorm1d(BatchNorm, nn.BatchNorm1d):  # type: ignore[misc]
    """`BatchNorm` over (N, C) or (N, C, L)."""

    ranks = (2, 3)


class BatchNorm2d(BatchNorm, nn.BatchNorm2d):  # type: ignore[misc]
    """`BatchNorm` over (N, C, H, W)."""

    ranks = (4,)


class BatchNorm3d(BatchNorm, nn.BatchNorm3d):  # type: ignore[misc]
    """`BatchNorm` over (N, C, D, H, W)."""

    ranks = (5,)
