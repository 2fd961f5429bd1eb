"""BatchNorm and InstanceNorm: statistics per channel, over the batch or within each sample."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from normscope.blocks.norm.base import Device, Norm, ScopeText
from normscope.blocks.norm.checks import channel_axes, resolve_scope
from normscope.blocks.torch_tools import is_fx_proxy
from normscope.errors import ShapeError
from normscope.ops.norm.reference import check_floating
from normscope.scope import Plan


class _ChannelNorm(Norm):
    """Base class of BatchNorm and InstanceNorm: a gain per channel, and optional running statistics."""

    default_scope = ""
    ranks: tuple[int, ...] | None = None  # the tensor ranks that the 1d, 2d and 3d layers accept; None for any

    def __init__(
        self,
        num_features: int | ScopeText,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Device = None,
        dtype: torch.dtype | None = None,
        *,
        bias: bool = True,
        sync: bool = False,
        **sizes: Any,
    ) -> None:
        scope, sizes = resolve_scope(num_features, self.default_scope, "c", sizes)
        super().__init__(
            scope,
            state="running" if track_running_stats else None,
            affine=channel_axes(scope, sizes) if affine else None,
            bias=bias,
            eps=eps,
            momentum=momentum,
            sync=sync,
            device=device,
            dtype=dtype,
            **sizes,
        )
        if scope.text == self.default_scope and "c" in sizes:  # else unset: converters to torch must fail
            self.num_features = sizes["c"]
        self.affine = affine
        self.track_running_stats = track_running_stats

    def _check_rank(self, x: Tensor) -> None:
        check_floating(x)
        if self.ranks is not None and x.dim() not in self.ranks:
            wanted = " or ".join(f"{rank}" for rank in self.ranks)
            raise ShapeError(
                f"{type(self).__name__} takes a tensor of {wanted} dimensions, but got {x.dim()}: "
                f"shape {tuple(x.shape)}"
            )

    def _check_plan(self, plan: Plan) -> None:
        if self.state is None or not self._uses_running_stats():
            self._check_count(plan)


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
        affine: whether the layer has a learnable gain (and bias).
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

    def forward(self, input: Tensor, mask: Tensor | None = None) -> Tensor:
        if is_fx_proxy(input):
            return self._fx_call(input, mask)
        self._check_rank(input)
        return super().forward(input, mask)

    def _updates_running_stats(self) -> bool:
        return self.track_running_stats  # as torch's: turned off on a finished layer, training leaves the memory alone


class BatchNorm1d(BatchNorm, nn.BatchNorm1d):  # type: ignore[misc]
    """`BatchNorm` over (N, C) or (N, C, L)."""

    ranks = (2, 3)


class BatchNorm2d(BatchNorm, nn.BatchNorm2d):  # type: ignore[misc]
    """`BatchNorm` over (N, C, H, W)."""

    ranks = (4,)


class BatchNorm3d(BatchNorm, nn.BatchNorm3d):  # type: ignore[misc]
    """`BatchNorm` over (N, C, D, H, W)."""

    ranks = (5,)


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

    def forward(self, input: Tensor, mask: Tensor | None = None) -> Tensor:
        if is_fx_proxy(input):
            return self._fx_call(input, mask)
        self._check_rank(input)
        if self.ranks is not None and input.dim() == min(self.ranks):
            return super().forward(input[None], mask[None] if isinstance(mask, Tensor) else mask)[0]
        return super().forward(input, mask)

    def _uses_running_stats(self) -> bool:
        return self.track_running_stats and not self.training  # as torch's, if it is turned off on a finished layer


class InstanceNorm1d(InstanceNorm, nn.InstanceNorm1d):  # type: ignore[misc]
    """`InstanceNorm` over (N, C, L) or (C, L)."""

    ranks = (2, 3)


class InstanceNorm2d(InstanceNorm, nn.InstanceNorm2d):  # type: ignore[misc]
    """`InstanceNorm` over (N, C, H, W) or (C, H, W)."""

    ranks = (3, 4)


class InstanceNorm3d(InstanceNorm, nn.InstanceNorm3d):  # type: ignore[misc]
    """`InstanceNorm` over (N, C, D, H, W) or (C, D, H, W)."""

    ranks = (4, 5)
