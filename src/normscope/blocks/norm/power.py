"""PowerNorm: BatchNorm for text."""

from typing import Any

import torch

from normscope.blocks.norm.checks import resolve_scope
from normscope.blocks.norm.norm import Device, Norm, ScopeText


class PowerNorm(Norm):
    r"""Power normalization: BatchNorm for text. No centring, and running statistics in training too.

    Formula:
        y = x / psi * weight + bias           psi^2: the running mean of x^2, from the batches before this one
        The backward pass is the paper's approximation, see `normscope.ops.power_norm`.

    Scope:
        `[...] d`: every feature over all tokens; `[n] c [...]` for images, as a scope.

    Shapes:
        x: (..., d). y: the same. weight, bias, running_square (psi^2) and running_nu (the paper's nu): (d).

    As psi starts at 1, the first batches go through as they are: a deep pre-norm model whose branches grow faster than
    their input (SwiGLU, the square of it) can start with numbers that are not finite. `warmup` begins with the batch's
    own statistic instead, which a causal model may not see, or take another activation there.

    Example:
        >>> import torch
        >>> norm = PowerNorm(4)
        >>> x = torch.full((2, 3, 4), 3.0)
        >>> y = norm(x)  # the first batch is divided by psi's starting value, 1
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
        scope, sizes = resolve_scope(num_features, "[...] d", "d", sizes)
        owner = " ".join(axis.name for axis in scope.axes if not axis.bracketed)
        super().__init__(
            scope,
            statistic="rms",
            state="power",
            affine=owner if affine else None,
            bias=bias,
            eps=eps,
            momentum=momentum,
            warmup=warmup,
            sync=sync,
            device=device,
            dtype=dtype,
            **sizes,
        )
