"""LayerNorm and RMSNorm: statistics per token, or per image."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from normscope.blocks.norm.base import Device, Norm, ScopeText
from normscope.blocks.norm.checks import check_no_sizes, parse_sized_scope, to_positive_int
from normscope.errors import ConfigError
from normscope.scope import Scope


def _set_normalized_shape(norm: Norm, shape: object) -> None:
    if hasattr(norm, "_normalized_shape"):
        raise ConfigError(
            f"normalized_shape of an existing {type(norm).__name__} cannot be changed\nfix: make a new layer"
        )
    norm._normalized_shape = shape  # type: ignore[assignment]


_NORMALIZED_SHAPE = property(lambda norm: norm._normalized_shape, _set_normalized_shape)


class LayerNorm(Norm, nn.LayerNorm):  # type: ignore[misc] # torch's class, so that isinstance works
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
        elementwise_affine: whether the layer has a learnable gain (and bias).
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

    normalized_shape = _NORMALIZED_SHAPE

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
        elementwise_affine: whether the layer has a learnable gain.

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

    normalized_shape = _NORMALIZED_SHAPE

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

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:  # named x in torch's RMSNorm
        return super().forward(x, mask)


def _last_axes(
    normalized_shape: int | Sequence[int] | ScopeText, sizes: dict[str, Any]
) -> tuple[ScopeText, str, dict[str, Any], tuple[int, ...]]:
    """Return the scope, the affine axes, the sizes and the normalized_shape for torch's argument, or for a scope."""
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
