"""LayerNorm: statistics within each token, or within each image."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from normscope.blocks.norm.base import Device, ScopeText
from normscope.blocks.norm.row_norm import _RowNorm


class LayerNorm(_RowNorm, nn.LayerNorm):  # type: ignore[misc] # torch's class, so that isinstance works
    r"""Layer normalization: normalize each token (or image) over its features.

    Formula:
        y = (x - mean) / sqrt(variance + eps) * weight + bias

    Scope:
        `... [d]` in a transformer, `n [c h w]` in a convnet.

    Shapes:
        x: (..., *normalized_shape). y: same as x. weight and bias: normalized_shape.

    Args:
        normalized_shape: the sizes of the last dimensions, or a scope such as "n [c h w]" with the sizes as keyword
            arguments.
        eps: value added to the variance.
        elementwise_affine: whether the layer has a learnable weight (and bias).
        bias: whether the affine parameters include a bias.

    Example:
        >>> import torch
        >>> x = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
        >>> LayerNorm(4)(x).detach()
        tensor([[-1.3416, -0.4472,  0.4472,  1.3416]])
        >>> LayerNorm(768, bias=False)  # as in nanoGPT
        LayerNorm('... [d]', affine='d', bias=False, eps=1e-05, d=768)
        >>> LayerNorm("n [c h w]", c=3, h=2, w=2).weight.shape
        torch.Size([3, 2, 2])

    Paper:
        Ba, Kiros and Hinton 2016, "Layer Normalization".
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int] | ScopeText,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Device = None,
        dtype: torch.dtype | None = None,
        **sizes: Any,
    ) -> None:
        super().__init__(normalized_shape, elementwise_affine, sizes, bias=bias, eps=eps, device=device, dtype=dtype)
