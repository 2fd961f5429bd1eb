"""The tab "Scope": which values share statistics, and every step of a norm on them."""

import itertools
import math
from typing import Annotated, Any, get_args

import msgspec
import torch
from torch import Tensor

from normscope.errors import ConfigError
from normscope.learning.norm_layers import LAYOUTS, Layout, LayoutName, NormName, Shape
from normscope.learning.worked_norm import (
    MAX_VALUES,
    WorkedNorm,
    layer_title,
    work_through_norm,
)
from normscope.ops.norm import reference
from normscope.ops.norm.statistic import StatisticName
from normscope.scope import Plan
from normscope.studio.endpoints import Endpoint, NoArguments
from normscope.studio.state import StudioState

MAX_SIZE = 16
"""Largest size of a dimension."""
SEED = 0

Number = Annotated[float, msgspec.Meta(ge=-1e6, le=1e6)]
Size = Annotated[int, msgspec.Meta(ge=1, le=MAX_SIZE)]
Edits = Annotated[dict[int, Number], msgspec.Meta(max_length=MAX_VALUES)]


class ScopeRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A norm and a tensor.

    Args:
        layout, shape: the tensor; its values are random, with a fixed seed.
        norm: a named norm; None for the one that `scope` and `statistic` describe.
        sizes: sizes of split axes.
        edits, weight, bias: values that were changed, by their index.
        padding: whether samples after the first are shorter, and padded with `pad_value`.
        masked: whether the norm gets the padding mask.
        earlier_batches: how many times PowerNorm has seen this batch.
    """

    layout: LayoutName
    shape: Annotated[list[Size], msgspec.Meta(min_length=1, max_length=4)]
    norm: NormName | None = None
    scope: Annotated[str, msgspec.Meta(max_length=200)] = ""
    statistic: StatisticName = "standardize"
    sizes: Annotated[dict[Annotated[str, msgspec.Meta(max_length=40)], Size], msgspec.Meta(max_length=8)] = {}
    edits: Edits = {}
    weight: Edits = {}
    bias: Edits = {}
    padding: bool = False
    masked: bool = False
    pad_value: Number = 0.0
    earlier_batches: Annotated[int, msgspec.Meta(ge=0, le=50)] = 0


class LayoutsRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A named norm, for the same values as images and as text."""

    norm: NormName


def norms(studio: StudioState, request: NoArguments) -> dict[str, Any]:
    """What the page offers: the named norms, and the layouts with their scopes."""
    return {
        "norms": [{"name": name, "title": layer_title(name)} for name in get_args(NormName)],
        "layouts": {
            name: {"axes": layout.axes, "feature": layout.feature, "shape": layout.example, "scopes": layout.scopes}
            for name, layout in LAYOUTS.items()
        },
        "max_size": MAX_SIZE,
        "max_values": MAX_VALUES,
    }


def work(studio: StudioState, request: ScopeRequest) -> dict[str, Any]:
    """Work through a norm on a tensor."""
    layout, shape = LAYOUTS[request.layout], tuple(request.shape)
    _check_shape(layout, shape)
    x, mask = example_values(shape), layout.mask(shape) if request.padding else None
    flat = x.view(-1)
    for index, value in request.edits.items():
        if 0 <= index < len(flat):
            flat[index] = value
    if mask is not None:
        x = x.where(mask, request.pad_value)
    worked = work_through_norm(
        x,
        layout,
        request.norm,
        scope=request.scope,
        statistic=request.statistic,
        sizes=request.sizes,
        weight=request.weight,
        bias=request.bias,
        mask=mask if request.masked else None,
        earlier_batches=request.earlier_batches,
    )
    return _shown(worked, layout, mask)


def layouts(studio: StudioState, request: LayoutsRequest) -> dict[str, Any]:
    """The same values as images (n, c, h, w) and as text (n, h w, c): what shares statistics in each."""
    shape: Shape = (2, 3, 2, 2)
    x = example_values(shape)
    indices = torch.arange(x.numel()).reshape(shape)
    found: dict[str, Any] = {}
    arranged: dict[LayoutName, tuple[Tensor, Tensor]] = {
        "image": (x, indices),
        "text": (x.flatten(2).transpose(1, 2), indices.flatten(2).transpose(1, 2)),
    }
    for name, (values, places) in arranged.items():
        layout = LAYOUTS[name]
        worked = work_through_norm(values, layout, request.norm)
        found[name] = {
            "axes": layout.axes,
            "shape": values.shape,
            "feature": layout.feature,
            "scope": worked.layer.scope.text,
            "values": values.flatten().tolist(),
            "groups": worked.groups.flatten().tolist(),
            "group_count": math.prod(worked.plan.statistics_shape),
            "count": worked.plan.count,
            # The index of each value in the images, to find it in both.
            "same": places.flatten().tolist(),
        }
    return {**found, "code": "x.flatten(2).transpose(1, 2)"}


def example_values(shape: Shape) -> Tensor:
    """Random values with one decimal, so that a reader can check the arithmetic."""
    generator = torch.Generator().manual_seed(SEED)
    return (torch.randn(shape, generator=generator).double() * 10).round() / 10


def _check_shape(layout: Layout, shape: Shape) -> None:
    if len(shape) != len(layout.axes):
        raise ConfigError(f"{layout.axes} needs {len(layout.axes)} sizes, but got {shape}")
    if math.prod(shape) > MAX_VALUES:
        raise ConfigError(
            f"a tensor of shape {shape} has {math.prod(shape):,} values, more than the {MAX_VALUES:,} that can be "
            "shown\nfix: make it smaller"
        )


def _shown(worked: WorkedNorm, layout: Layout, mask: Tensor | None) -> dict[str, Any]:
    plan, layer = worked.plan, worked.layer
    real = None if mask is None else mask.expand(plan.shape)
    torch_variance, torch_mean = torch.var_mean(worked.x.reshape(plan.split_shape), plan.reduced, correction=0)
    if not layer.statistic.centers:
        torch_variance = worked.x.reshape(plan.split_shape).square().mean(plan.reduced)
    statistics = worked.statistics
    return {
        "scope": layer.scope.text,
        "axes": layout.axes,
        "shape": plan.shape,
        "reads": [f"{name}={size}" for name, size in zip(plan.names, plan.split_shape, strict=True)],
        "layer": repr(layer),
        "formula": layer.statistic.formula,
        "centers": layer.statistic.centers,
        "eps": reference.default_eps(worked.x) if layer.eps is None else layer.eps,
        "count": plan.count,
        "groups": worked.groups.flatten(),
        "group_names": _group_names(plan),
        "parameters": None if worked.parameters is None else worked.parameters.flatten(),
        "weight": None if layer.weight is None else layer.weight.flatten(),
        "bias": None if layer.bias is None else layer.bias.flatten(),
        "mask": None if real is None else real.flatten(),
        "x": worked.x.flatten(),
        "normalized": worked.normalized.flatten(),
        "result": worked.result.flatten(),
        "mean": None if statistics.mean is None else statistics.mean.flatten(),
        "moment": statistics.second_moment.flatten(),
        "counts": statistics.count.flatten(),
        "running": None if worked.running is None else worked.running.flatten(),
        "next_running": None if worked.next_running is None else worked.next_running.flatten(),
        "torch": {
            "code": worked.torch.code,
            "normalized": worked.torch_normalized.flatten(),
            "result": worked.torch_result.flatten(),
            "mean": torch_mean.flatten() if layer.statistic.centers else None,
            "moment": torch_variance.flatten(),
            "difference": worked.max_difference(real),
        },
        "same_as": [layer_title(name) for name in worked.same_as],
        "splits": [
            {
                "name": split.name,
                "size": split.size,
                "sizes": split.sizes,
                "same_as": [[layer_title(name) for name in names] for names in split.same_as],
            }
            for split in worked.splits
        ],
        "padding": None if real is None else _padding_effect(worked, real),
    }


def _group_names(plan: Plan) -> list[str]:
    """The index of each statistic along the kept axes: "n=0 g=1"."""
    names = [plan.names[i] for i in plan.kept]
    indices = itertools.product(*(range(size) for size in plan.statistics_shape))
    return [" ".join(f"{name}={i}" for name, i in zip(names, index, strict=True)) for index in indices]


def _padding_effect(worked: WorkedNorm, real: Tensor) -> dict[str, Any]:
    """The statistics of the real values, of all values with the padding, and with the mask, per group."""
    plan, statistic = worked.plan, worked.layer.statistic
    found: dict[str, Any] = {}
    true, _ = reference.prepare_input(worked.x, plan, real)
    rows = {"real": (true, reference.expand_mask(real, plan)), "padded": (worked.x.reshape(plan.split_shape), None)}
    for name, (values, mask) in rows.items():
        measured = reference.compute_statistics(values.double(), plan, statistic, mask, False)
        found[name] = {
            "mean": None if measured.mean is None else measured.mean.flatten(),
            "moment": measured.second_moment.flatten(),
            "counts": measured.count.flatten(),
        }
    has_real = found["real"]["counts"] > 0
    wrong = (found["real"]["moment"] - found["padded"]["moment"]).abs() > 1e-6
    if statistic.centers:
        wrong |= (found["real"]["mean"] - found["padded"]["mean"]).abs() > 1e-6
    return {**found, "wrong": (wrong & has_real), "has_real": has_real}


ENDPOINTS: dict[str, Endpoint] = {"scope/norms": norms, "scope/work": work, "scope/layouts": layouts}
