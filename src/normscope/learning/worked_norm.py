"""A norm worked through on every value of a small tensor: which values share statistics, and each step on them."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

import torch
from torch import Tensor, nn

from normscope.blocks.norm import Norm
from normscope.learning.norm_layers import (
    LAYERS,
    Layout,
    NormName,
    Shape,
    TorchReference,
    build_layer,
    build_norm,
    torch_expression,
    torch_layer,
)
from normscope.ops.norm import reference
from normscope.ops.norm.reference import Affine, NormStatistics
from normscope.ops.norm.statistic import StatisticName
from normscope.scope import Plan, Scope
from normscope.scope.grammar import SplitDimension

MAX_VALUES = 512
"""Largest tensor that is worked through value by value."""


@dataclass(frozen=True)
class SplitChoice:
    """An axis of a split dimension whose size can be chosen.

    Args:
        name, size: the axis.
        sizes: the sizes it can have.
        same_as: for each of these, the named norms that then share the same statistics.
    """

    name: str
    size: int
    sizes: tuple[int, ...]
    same_as: tuple[tuple[NormName, ...], ...]


@dataclass(frozen=True)
class WorkedNorm:
    """Every step of a norm on a tensor. Tensors of one entry per value have the shape of the input.

    Args:
        plan: the scope, bound to the shape.
        layer: the layer that computed `result`.
        groups: the index of the statistic that each value belongs to.
        parameters: the index of the gain that each value is multiplied with; None without a gain.
        statistics: of the values, per group, without those that the mask hides.
        x, normalized, result: the input, and the output without and with gain and bias.
        torch: the same in torch.
        torch_normalized, torch_result: its outputs. torch's layers have no mask.
        running, next_running: the running mean square that PowerNorm divides by, and the one after this batch, per
            group; None for other norms.
        same_as: the named norms that share the same statistics.
        splits: the split axes.
    """

    plan: Plan
    layer: Norm
    groups: Tensor
    parameters: Tensor | None
    statistics: NormStatistics
    x: Tensor
    normalized: Tensor
    result: Tensor
    torch: TorchReference
    torch_normalized: Tensor
    torch_result: Tensor
    running: Tensor | None
    next_running: Tensor | None
    same_as: tuple[NormName, ...]
    splits: tuple[SplitChoice, ...]

    def max_difference(self, mask: Tensor | None = None) -> float:
        """The largest difference between the layer's output and torch's, over real positions."""
        difference = (self.result - self.torch_result).abs()
        if mask is not None:
            difference = difference.where(mask, 0.0)
        return float(difference.max())


def work_through_norm(
    x: Tensor,
    layout: Layout,
    norm: NormName | None = None,
    *,
    scope: str = "",
    statistic: StatisticName = "standardize",
    sizes: Mapping[str, int] | None = None,
    weight: Mapping[int, float] | None = None,
    bias: Mapping[int, float] | None = None,
    mask: Tensor | None = None,
    earlier_batches: int = 0,
) -> WorkedNorm:
    """Work through a named norm, or any scope, on a tensor.

    Args:
        x: the tensor, of at most `MAX_VALUES` values; in float64 no kernel has to be compiled for it.
        layout: what its dimensions mean.
        norm: a named norm; or None for the norm that `scope` and `statistic` describe.
        scope, statistic: see `normscope.Norm`.
        sizes: sizes of split axes; those not given are chosen, others are ignored.
        weight, bias: values of the gain and the bias that differ from 1 and 0, by their index.
        mask: True at real positions.
        earlier_batches: how many times PowerNorm has seen this batch before.

    >>> from normscope.learning.norm_layers import LAYOUTS
    >>> worked = work_through_norm(torch.ones(2, 4, 3, 3).double(), LAYOUTS["image"], "group", sizes={"g": 4})
    >>> worked.same_as, worked.torch.code
    (('instance', 'group'), 'nn.GroupNorm(4, 4)(x)')
    """
    text = scope if norm is None else layout.scopes[norm]
    parsed = Scope.parse(text)
    splits = _split_axes(parsed, tuple(x.shape), sizes or {})
    plan = parsed.bind(tuple(x.shape), **{name: size for name, (size, _) in splits.items()})
    layer = build_norm(text, statistic, layout, plan) if norm is None else build_layer(norm, layout, plan)
    layer = layer.to(x.dtype)
    torch_norm = (None if norm is None else torch_layer(norm, layout, plan)) or torch_expression(layer, plan)
    with torch.no_grad():
        for _ in range(earlier_batches if layer.state == "power" else 0):
            layer(x, mask)
        # Copies: the last call of the layer moves its running statistics.
        plain = copy.deepcopy(layer)
        _set_parameters(layer.weight, weight or {})
        _set_parameters(layer.bias, bias or {})
        before = copy.deepcopy(layer)
        result = layer(x, mask)
        normalized, statistics = _steps(x, before, plan, mask)
    parameters = None
    if layer.axes is not None and layer.weight is not None:
        parameters = _spread(layer.weight.numel(), plan.broadcast_shape(layer.axes.names), plan)
    groups = group_indices(plan)
    choices = [
        SplitChoice(name, size, options, tuple(_same_as_sized(parsed, x, layout, layer, splits, name, options)))
        for name, (size, options) in splits.items()
    ]
    return WorkedNorm(
        plan=plan,
        layer=layer,
        groups=groups,
        parameters=parameters,
        statistics=statistics,
        x=x,
        normalized=normalized,
        result=result,
        torch=torch_norm,
        torch_normalized=torch_norm.run(x, plain).detach(),
        torch_result=torch_norm.run(x, before).detach(),
        running=before.running_square,
        next_running=layer.running_square,
        same_as=same_statistics(plan, layout, layer.statistic.centers),
        splits=tuple(choices),
    )


def group_indices(plan: Plan) -> Tensor:
    """Return the index of the statistic that each value belongs to."""
    shape = plan.statistics_broadcast_shape()
    return _spread(torch.Size(shape).numel(), shape, plan)


def same_statistics(plan: Plan, layout: Layout, centers: bool) -> tuple[NormName, ...]:
    """Return the named norms that share statistics between the same values of tensors of this shape."""
    groups, found = group_indices(plan), []
    for name in get_args(NormName):
        scope = Scope.parse(layout.scopes[name])
        other = scope.bind(plan.shape, **{axis: size for axis, (size, _) in _split_axes(scope, plan.shape, {}).items()})
        named_centers = name not in ("rms", "power")
        if name == "group":  # any number of groups is a GroupNorm
            fits = plan.names == other.names and plan.roles == other.roles
        else:
            fits = torch.equal(groups, group_indices(other)) and name != "power"
        if fits and named_centers == centers:
            found.append(name)
    return tuple(found)


def layer_title(name: NormName) -> str:
    """The name of the layer: "BatchNorm"."""
    return LAYERS[name].__name__


def _split_axes(scope: Scope, shape: Shape, sizes: Mapping[str, int]) -> dict[str, tuple[int, tuple[int, ...]]]:
    """Return the size of each axis of a split dimension but the last of it, with the sizes it could have."""
    found: dict[str, tuple[int, tuple[int, ...]]] = {}
    for dim, size in zip(scope.dimensions(len(shape)), shape, strict=True):
        rest = size
        for axis in dim.axes[:-1] if isinstance(dim, SplitDimension) else ():
            options = tuple(n for n in range(1, rest + 1) if rest % n == 0)
            chosen = sizes.get(axis.name, options[(len(options) - 1) // 2])
            found[axis.name] = chosen, options
            rest = rest // chosen if chosen in options else rest
    return found


def _same_as_sized(
    scope: Scope,
    x: Tensor,
    layout: Layout,
    layer: Norm,
    splits: Mapping[str, tuple[int, tuple[int, ...]]],
    name: str,
    options: Sequence[int],
) -> Sequence[tuple[NormName, ...]]:
    """Return the norms with the same statistics, for each size of a split axis and the chosen sizes of the others."""
    chosen = {axis: size for axis, (size, _) in splits.items()}
    if len(chosen) > 1:  # not every combination of sizes fits
        return [()] * len(options)
    plans = [scope.bind(tuple(x.shape), **{name: size}) for size in options]
    return [same_statistics(plan, layout, layer.statistic.centers) for plan in plans]


def _steps(x: Tensor, layer: Norm, plan: Plan, mask: Tensor | None) -> tuple[Tensor, NormStatistics]:
    """Return the normalized values before gain and bias, and the statistics of the batch."""
    eps = reference.default_eps(x) if layer.eps is None else layer.eps
    normalized, statistics = reference.normalize_with_batch_statistics(
        x, plan, statistic=layer.statistic, eps=eps, affine=Affine(), mask=mask
    )
    if layer.running_square is not None:
        square = layer.running_square.reshape(plan.broadcast_shape(layer.tracked))
        normalized = reference.normalize_with_running_statistics(
            x, plan, None, square, eps=eps, affine=Affine(), mask=mask
        )
    return normalized, statistics


def _set_parameters(parameter: nn.Parameter | None, values: Mapping[int, float]) -> None:
    if parameter is not None:
        flat = parameter.view(-1)
        for index, value in values.items():
            if 0 <= index < len(flat):
                flat[index] = value


def _spread(count: int, shape: Shape, plan: Plan) -> Tensor:
    """Return, for each value, the index of its entry in a tensor of this broadcast shape."""
    return torch.arange(count).reshape(shape).expand(plan.split_shape).reshape(plan.shape)
