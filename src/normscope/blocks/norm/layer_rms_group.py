"""LayerNorm, RMSNorm and GroupNorm: statistics within each token, or within each image."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from normscope.blocks.norm.base import Device, Norm, ScopeText
from normscope.blocks.norm.checks import channel_axes, resolve_scope, to_positive_int
from normscope.errors import ConfigError
from normscope.ops.symbolic_sizes import is_known
from normscope.scope import Plan, Scope


class _RowNorm(Norm):
    """Base class of LayerNorm and RMSNorm: a gain for each value that shares a statistic."""

    def __init__(
        self, normalized_shape: int | Sequence[int] | ScopeText, affine: bool, sizes: dict[str, Any], **options: Any
    ) -> None:
        scope, sizes = resolve_scope(normalized_shape, sizes, lambda: _last_axes(normalized_shape))
        names = [axis.name for axis in scope.axes if axis.bracketed]
        super().__init__(scope, affine=" ".join(names) if affine else None, **options, **sizes)
        self._normalized_shape = tuple(sizes[name] for name in names if name in sizes)
        self.elementwise_affine = affine

    @property
    def normalized_shape(self) -> tuple[int, ...]:
        return self._normalized_shape

    @normalized_shape.setter
    def normalized_shape(self, shape: object) -> None:
        name = type(self).__name__
        raise ConfigError(f"normalized_shape of an existing {name} cannot be changed\nfix: make a new layer")


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

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:  # named x in torch's RMSNorm
        return super().forward(x, mask)


def _last_axes(normalized_shape: object) -> tuple[str, dict[str, int]]:
    """Return the scope and the sizes for torch's normalized_shape."""
    given = tuple(normalized_shape) if isinstance(normalized_shape, list | tuple) else (normalized_shape,)
    if not given:
        raise ConfigError("normalized_shape is empty; give the sizes of the last axes, one or more")
    shape = [to_positive_int("normalized_shape", size) for size in given]
    sizes = {"d": shape[0]} if len(shape) == 1 else {f"d{i}": size for i, size in enumerate(shape)}
    return f"... [{' '.join(sizes)}]", sizes


class GroupNorm(Norm, nn.GroupNorm):  # type: ignore[misc]
    r"""Group normalization: normalize each group of channels of each sample.

    Formula:
        y = (x - mean) / sqrt(variance + eps) * weight + bias

    Scope:
        `n (g [c]) [...]`. With g = C this is InstanceNorm, with g = 1 LayerNorm over c h w.

    Shapes:
        x: (N, C, ...). y: same as x. weight and bias: (C), per channel rather than per group.

    Args:
        num_groups: the number of groups, or a scope such as "n (g [c]) [...]" with the sizes as keyword arguments.
        num_channels: the number of channels C, divisible by num_groups.
        eps: value added to the variance.
        affine: whether the layer has a learnable gain (and bias).
        bias: whether the affine parameters include a bias.

    Example:
        >>> import torch
        >>> norm = GroupNorm(2, 6)
        >>> norm, norm(torch.randn(4, 6, 5, 5)).shape
        (GroupNorm('n (g [c]) [...]', affine='(g c)', eps=1e-05, g=2, c=3), torch.Size([4, 6, 5, 5]))

    Paper:
        Wu and He 2018, "Group Normalization".
    """

    def __init__(
        self,
        num_groups: int | ScopeText,
        num_channels: int | None = None,
        eps: float = 1e-5,
        affine: bool = True,
        device: Device = None,
        dtype: torch.dtype | None = None,
        *,
        bias: bool = True,
        **sizes: Any,
    ) -> None:
        if isinstance(num_groups, str | Scope) and num_channels is not None:
            raise ConfigError(f"num_channels={num_channels!r} goes with num_groups; with a scope give c=... instead")
        scope, sizes = resolve_scope(
            num_groups, sizes, lambda: ("n (g [c]) [...]", _group_sizes(num_groups, num_channels))
        )
        owner = channel_axes(scope, sizes) if affine else None
        super().__init__(scope, affine=owner, bias=bias, eps=eps, device=device, dtype=dtype, **sizes)
        self.num_channels = math.prod(sizes.values())
        self.affine = affine

    @property
    def num_groups(self) -> int:
        """The number of groups. Assigning to it regroups the channels, as in torch.nn.GroupNorm."""
        return self.sizes.get("g", 1)

    @num_groups.setter
    def num_groups(self, value: int) -> None:
        sizes = _group_sizes(value, self.num_channels)
        if self.sizes.keys() != sizes.keys():
            raise ConfigError(
                f"num_groups={value} cannot be set on a norm over {self.scope.text!r}\nfix: make a new GroupNorm"
            )
        self.sizes = sizes
        self._plans.clear()
        self._calls.clear()

    def _check_plan(self, plan: Plan) -> None:
        # As torch: an error only if the whole tensor, including the batch, has one value per group.
        if is_known(math.prod(plan.shape) == math.prod(plan.broadcast_shape(("g",)))):
            self._check_count(plan)


def _group_sizes(num_groups: Any, num_channels: Any) -> dict[str, int]:
    channels, groups = to_positive_int("num_channels", num_channels), to_positive_int("num_groups", num_groups)
    if channels % groups:
        raise ConfigError(f"GroupNorm({groups}, {channels}): num_channels must be divisible by num_groups")
    return {"g": groups, "c": channels // groups}
