"""GroupNorm: statistics within each group of channels of each sample."""

import math
from typing import Any

import torch
from torch import nn

from normscope.blocks.norm.base import Device, Norm, ScopeText
from normscope.blocks.norm.checks import channel_axes, resolve_scope, to_positive_int
from normscope.errors import ConfigError
from normscope.ops.symbolic_sizes import statically_known_true
from normscope.scope import Plan, Scope


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
        affine: whether the layer has a learnable weight (and bias).
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
        affine_axes = channel_axes(scope, sizes) if affine else None
        super().__init__(scope, affine=affine_axes, bias=bias, eps=eps, device=device, dtype=dtype, **sizes)
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
        # Like torch: an error only if the whole tensor, including the batch, has one value per group.
        if statically_known_true(math.prod(plan.shape) == math.prod(plan.broadcast_shape(("g",)))):
            self._check_count(plan)


def _group_sizes(num_groups: Any, num_channels: Any) -> dict[str, int]:
    channels, groups = to_positive_int("num_channels", num_channels), to_positive_int("num_groups", num_groups)
    if channels % groups:
        raise ConfigError(f"GroupNorm({groups}, {channels}): num_channels must be divisible by num_groups")
    return {"g": groups, "c": channels // groups}
