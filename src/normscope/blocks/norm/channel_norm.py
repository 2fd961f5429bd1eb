"""What the norms with statistics per channel share: BatchNorm, InstanceNorm and PowerNorm."""

from typing import Any

import torch
from torch import Tensor

from normscope.blocks.norm.base import Device, Norm, ScopeText
from normscope.blocks.norm.checks import channel_axes, resolve_scope, to_positive_int
from normscope.blocks.torch_tools import is_fx_proxy
from normscope.errors import ShapeError
from normscope.ops.norm.reference import check_floating
from normscope.scope import Plan, Scope


def per_channel_scope(
    num_features: object, sizes: dict[str, Any], default: str, axis: str
) -> tuple[Scope, dict[str, Any]]:
    """Return the default scope of a layer for a number of features, or a given scope with its sizes."""
    fix = f"or a scope such as {default!r}"
    return resolve_scope(
        num_features, sizes, lambda: (default, {axis: to_positive_int("num_features", num_features, fix)})
    )


class _ChannelNorm(Norm):
    """Base class of BatchNorm and InstanceNorm: a weight per channel, and optional running statistics."""

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
        scope, sizes = per_channel_scope(num_features, sizes, self.default_scope, "c")
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
