"""LayerNorm and RMSNorm: every token, or every image, by itself."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from normscope.blocks.norm.checks import check_no_sizes, parse_sized_scope, to_positive_int
from normscope.blocks.norm.norm import Device, Norm, ScopeText
from normscope.errors import ConfigError
from normscope.scope import Scope


class LayerNorm(Norm, nn.LayerNorm):  # type: ignore[misc] # torch's, for those who ask with isinstance
    r"""Layer normalization: every token, or every image, by its own mean and variance.

    Formula:
        y = (x - mean) / sqrt(variance + eps) * weight + bias

    Scope:
        `... [d]` in a transformer, `n [c h w]` in a convnet.

    Shapes:
        x: (..., *normalized_shape). y: the same. weight and bias: normalized_shape.

    Example:
        >>> import torch
        >>> x = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
        >>> LayerNorm(4)(x).detach()
        tensor([[-1.3416, -0.4472,  0.4472,  1.3416]])
        >>> LayerNorm(768, bias=False)  # nanoGPT's
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
        scope, owners, sizes, shape = _last_axes(normalized_shape, sizes)
        affine = owners if elementwise_affine else None
        super().__init__(scope, affine=affine, bias=bias, eps=eps, device=device, dtype=dtype, **sizes)
        self.normalized_shape = shape
        self.elementwise_affine = elementwise_affine


class RMSNorm(Norm, nn.RMSNorm):  # type: ignore[misc]
    r"""Root-mean-square normalization: LayerNorm without the centring and without the bias.

    Formula:
        y = x / sqrt(mean(x^2) + eps) * weight

    Scope:
        `... [d]`, with the rms statistic.

    Shapes:
        x: (..., *normalized_shape). y: the same. weight: normalized_shape.

    Example:
        >>> import torch
        >>> x = torch.tensor([[3.0, -4.0, 0.0]])
        >>> RMSNorm(3)(x).detach()
        tensor([[ 1.0392, -1.3856,  0.0000]])
        >>> RMSNorm(3, elementwise_affine=False)  # nanochat's: no parameters at all
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
        scope, owners, sizes, shape = _last_axes(normalized_shape, sizes)
        affine = owners if elementwise_affine else None
        super().__init__(
            scope, statistic="rms", affine=affine, bias=False, eps=eps, device=device, dtype=dtype, **sizes
        )
        self.normalized_shape = shape
        self.elementwise_affine = elementwise_affine

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:  # x: so torch's RMSNorm calls it
        return super().forward(x, mask)


def _last_axes(
    normalized_shape: int | Sequence[int] | ScopeText, sizes: dict[str, Any]
) -> tuple[ScopeText, str, dict[str, Any], tuple[int, ...]]:
    """Torch's normalized_shape as a scope over the last axes; a scope as it is. With the axes that own the gain."""
    if isinstance(normalized_shape, str | Scope):
        scope = parse_sized_scope(normalized_shape, sizes)
        names = [axis.name for axis in scope.axes if axis.bracketed]
        return scope, " ".join(names), sizes, tuple(sizes[name] for name in names if name in sizes)
    check_no_sizes(sizes, normalized_shape)
    given = tuple(normalized_shape) if isinstance(normalized_shape, list | tuple) else (normalized_shape,)
    if not given:
        raise ConfigError("normalized_shape is empty; give the sizes of the last axes, one or more")
    shape = tuple(to_positive_int("normalized_shape", size) for size in given)
    names = ["d"] if len(shape) == 1 else [f"d{i}" for i in range(len(shape))]
    return f"... [{' '.join(names)}]", " ".join(names), dict(zip(names, shape, strict=True)), shape
