"""PowerNorm: running statistics per channel, in training too."""

from typing import Any

import torch

from normscope.blocks.norm.base import Device, Norm, ScopeText
from normscope.blocks.norm.channel_norm import per_channel_scope


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
        affine: whether the layer has a learnable weight (and bias).
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
        scope, sizes = per_channel_scope(num_features, sizes, "[...] d", "d")
        affine_axes = " ".join(axis.name for axis in scope.axes if not axis.bracketed) if affine else None
        options: dict[str, Any] = {"statistic": "rms", "state": "power", "affine": affine_axes, "bias": bias}
        options |= {"eps": eps, "momentum": momentum, "warmup": warmup, "sync": sync, "device": device, "dtype": dtype}
        super().__init__(scope, **options, **sizes)
