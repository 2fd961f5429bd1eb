"""BatchNorm, InstanceNorm and PowerNorm: statistics per channel, over the batch or within each sample."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from normscope.blocks.norm.base import Device, Norm, ScopeText
from normscope.blocks.norm.checks import channel_axes, resolve_scope, to_positive_int
from normscope.blocks.torch_tools import is_fx_proxy
from normscope.errors import ShapeError
from normscope.ops.norm.reference import check_floating
from normscope.scope import Plan, Scope


def _per_channel(num_features: object, sizes: dict[str, Any], default: str, axis: str) -> tuple[Scope, dict[str, Any]]:
    """Return the default scope of a layer for a number of features, or a given scope with its sizes."""
    fix = f"or a scope such as {default!r}"
    return resolve_scope(
        num_features, sizes, lambda: (default, {axis: to_positive_int("num_features", num_features, fix)})
    )


class _ChannelNorm(Norm):
    """Base class of BatchNorm and InstanceNorm: a gain per channel, and optional running statistics."""

    default_scope = ""
    ranks: tuple[int, ...] = ()  # the tensor ranks that the 1d, 2d and 3d layers accept; empty for any
    _takes_samples = False  # whether the first of the ranks is that of a single sample

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
        scope, sizes = _per_channel(num_features, sizes, self.default_scope, "c")
        options: dict[str, Any] = {"momentum": momentum, "bias": bias, "sync": sync, "device": device, "dtype": dtype}
        options["state"] = "running" if track_running_stats else None
        super().__init__(scope, affine=channel_axes(scope, sizes) if affine else None, eps=eps, **options, **sizes)
        if scope.text == self.default_scope and "c" in sizes:  # else unset: converters to torch must fail
            self.num_features = sizes["c"]
        self.affine = affine
        self.track_running_stats = track_running_stats

    def forward(self, input: Tensor, mask: Tensor | None = None) -> Tensor:
        if is_fx_proxy(input):
            return self._fx_call(input, mask)
        check_floating(input)
        rank, ranks = input.dim(), self.ranks
        if ranks and rank not in ranks:
            wanted, name = " or ".join(map(str, ranks)), type(self).__name__
            raise ShapeError(
                f"{name} takes a tensor of {wanted} dimensions, but got {rank}: shape {tuple(input.shape)}"
            )
        if self._takes_samples and ranks and rank == ranks[0]:
            return super().forward(input[None], mask[None] if isinstance(mask, Tensor) else mask)[0]
        return super().forward(input, mask)

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


class PowerNorm(Norm):
    r"""Power normalization: BatchNorm for text, without mean subtraction, with running statistics in training too.

    Formula:
        y = x / psi * weight + bias           psi^2: the running mean of x^2 over the previous batches
        The backward pass is the paper's approximation; see `normscope.ops.norm.power_norm`.

    Scope:
        `[...] d`: each feature over all tokens. For images, pass the scope `[n] c [...]`.

    Shapes:
        x: (..., d). y: same as x. weight, bias, running_square (psi^2) and running_nu (the paper's nu): (d).

    Args:
        num_features: the number of features d, or a scope with the sizes as keyword arguments.
        eps: value added to psi^2.
        momentum: weight of the newest batch in the running statistics.
        affine: whether the layer has a learnable gain (and bias).
        bias: whether the affine parameters include a bias.
        warmup: the number of initial batches that are normalized with their own statistic.
        sync: compute statistics over all ranks of torch.distributed's default group.

    Note:
        psi starts at 1, so the first batches are not scaled. A deep pre-norm model with an activation that grows faster
        than its input (ReLU^2, SwiGLU) can then produce non-finite values. Use `warmup`, or another activation. Causal
        models cannot use `warmup`, because the batch's own statistic leaks the future.

    Example:
        >>> import torch
        >>> norm = PowerNorm(4)
        >>> x = torch.full((2, 3, 4), 3.0)
        >>> y = norm(x)  # the first batch is divided by the initial psi, 1
        >>> round(y.mean().item(), 4), norm.running_square
        (3.0, tensor([1.8000, 1.8000, 1.8000, 1.8000]))

    Paper:
        Shen et al. 2020, "PowerNorm: Rethinking Batch Normalization in Transformers".
    """

    def __init__(
        self,
        num_features: int | ScopeText,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = True,
        device: Device = None,
        dtype: torch.dtype | None = None,
        *,
        bias: bool = True,
        warmup: int = 0,
        sync: bool = False,
        **sizes: Any,
    ) -> None:
        scope, sizes = _per_channel(num_features, sizes, "[...] d", "d")
        owner = " ".join(axis.name for axis in scope.axes if not axis.bracketed) if affine else None
        options: dict[str, Any] = {"statistic": "rms", "state": "power", "affine": owner, "bias": bias, "eps": eps}
        options |= {"momentum": momentum, "warmup": warmup, "sync": sync, "device": device, "dtype": dtype}
        super().__init__(scope, **options, **sizes)
