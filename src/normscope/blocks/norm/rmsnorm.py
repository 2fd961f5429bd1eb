"""RMSNorm: the root mean square of each token."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from normscope.blocks.norm.base import Device, ScopeText
from normscope.blocks.norm.row_norm import _RowNorm


class RMSNorm(_RowNorm, nn.RMSNorm):  # type: ignore[misc]
    r"""Root mean square normalization: LayerNorm without mean subtraction and bias.

    Formula:
        y = x / sqrt(mean(x^2) + eps) * weight

    Scope:
        `... [d]`, with statistic="rms".

    Shapes:
        x: (..., *normalized_shape). y: same as x. weight: normalized_shape.

    Args:
        normalized_shape: the sizes of the last dimensions, or a scope with the sizes as keyword arguments.
        eps: value added to the mean square; None for the machine epsilon, as in torch.nn.RMSNorm.
        elementwise_affine: whether the layer has a learnable weight.

    Example:
        >>> import torch
        >>> x = torch.tensor([[3.0, -4.0, 0.0]])
        >>> RMSNorm(3)(x).detach()
        tensor([[ 1.0392, -1.3856,  0.0000]])
        >>> RMSNorm(3, elementwise_affine=False)  # as in nanochat: no parameters
        RMSNorm('... [d]', statistic='rms', eps=None, d=3)

    Paper:
        Zhang and Sennrich 2019, "Root Mean Square Layer Normalization".
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int] | ScopeText,
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: Device = None,
        dtype: torch.dtype | None = None,
        **sizes: Any,
    ) -> None:
        options: dict[str, Any] = {"statistic": "rms", "bias": False, "eps": eps, "device": device, "dtype": dtype}
        super().__init__(normalized_shape, elementwise_affine, sizes, **options)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:  # torch's RMSNorm calls it x
        return super().forward(x, mask)
