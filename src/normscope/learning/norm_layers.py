"""The named norms on images and on text: normscope's layer, and torch's layer or expression with the same result.

Axes: n c h w for images (samples, channels, height, width); b s d for text (sequences, tokens, features).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from normscope.blocks.norm import BatchNorm, GroupNorm, InstanceNorm, LayerNorm, Norm, PowerNorm, RMSNorm
from normscope.ops.norm.statistic import StatisticName
from normscope.scope import Plan, Scope
from normscope.scope.grammar import SplitDimension, flatten_axes, is_ellipsis

Shape = tuple[int, ...]
LayoutName = Literal["image", "text"]
NormName = Literal["batch", "layer", "instance", "group", "rms", "power"]


@dataclass(frozen=True)
class Layout:
    """What the dimensions of a tensor mean.

    Args:
        axes: their names.
        feature: the dimension of features: channels of an image, the embedding of a token.
        padded: the dimension in which samples differ in length, with padding at the end of the shorter ones.
        example: a small shape.
        scopes: the scope of each named norm.
    """

    axes: tuple[str, ...]
    feature: int
    padded: int
    example: Shape
    scopes: Mapping[NormName, str]

    def mask(self, shape: Shape) -> Tensor:
        """Return a mask, True at real positions: the first sample is complete, the following ones are shorter."""
        samples, size = shape[0], shape[self.padded]
        lengths = -(-size * torch.arange(samples, 0, -1) // samples)  # rounded up
        sizes = [1] * len(shape)
        sizes[self.padded] = size
        real = torch.arange(size).reshape(sizes) < lengths.reshape(-1, *[1] * (len(shape) - 1))
        sizes = [1 if i == self.feature else n for i, n in enumerate(shape)]
        return real.expand(sizes)


LAYOUTS: Mapping[LayoutName, Layout] = {
    "image": Layout(
        axes=("n", "c", "h", "w"),
        feature=1,
        padded=3,
        example=(2, 4, 3, 3),
        scopes={
            "batch": "[n] c [h w]",
            "layer": "n [c h w]",
            "instance": "n c [h w]",
            "group": "n (g [c]) [h w]",
            "rms": "n [c h w]",
            "power": "[n] c [h w]",
        },
    ),
    "text": Layout(
        axes=("b", "s", "d"),
        feature=2,
        padded=1,
        example=(3, 5, 4),
        scopes={
            "batch": "[b s] d",
            "layer": "b s [d]",
            "instance": "b [s] d",
            "group": "b s (g [d])",
            "rms": "b s [d]",
            "power": "[b s] d",
        },
    ),
}

LAYERS: Mapping[NormName, type[Norm]] = {
    "batch": BatchNorm,
    "layer": LayerNorm,
    "instance": InstanceNorm,
    "group": GroupNorm,
    "rms": RMSNorm,
    "power": PowerNorm,
}


@dataclass(frozen=True)
class TorchReference:
    """The same norm in torch alone.

    Args:
        code: the layer or expression, as a user would write it.
        run: computes it, with the parameters of the given norm.
    """

    code: str
    run: Callable[[Tensor, Norm], Tensor]


def build_layer(name: NormName, layout: Layout, plan: Plan) -> Norm:
    """Build normscope's layer for tensors of the plan's shape, with a gain (and bias) as torch's layer has."""
    scope = layout.scopes[name]
    sizes: dict[str, Any] = dict(zip(plan.names, plan.split_shape, strict=True))
    brackets = {axis.name: axis.bracketed for axis in Scope.parse(scope).axes}
    if name in ("layer", "rms"):  # a gain for every normalized value
        return LAYERS[name](scope, **{axis: size for axis, size in sizes.items() if brackets[axis]})
    feature = Scope.parse(scope).dims[layout.feature]
    sizes = {axis.name: sizes[axis.name] for axis in flatten_axes([feature])}
    return LAYERS[name](scope, **(sizes | {"affine": True}))


def build_norm(scope: str, statistic: StatisticName, layout: Layout, plan: Plan) -> Norm:
    """Build a norm over any scope, with one gain and bias per feature if the scope names the features' axis."""
    feature = Scope.parse(scope).dimensions(len(plan.shape))[layout.feature]
    if is_ellipsis(feature):
        return Norm(scope, statistic=statistic, **_split_sizes(scope, plan))
    axes = scope[slice(*feature.span)].replace("[", "").replace("]", "")
    sizes: dict[str, Any] = dict(zip(plan.names, plan.split_shape, strict=True))
    owned = {axis.name: sizes[axis.name] for axis in flatten_axes([feature])}
    return Norm(scope, statistic=statistic, affine=axes, **(_split_sizes(scope, plan) | owned))


def _split_sizes(scope: str, plan: Plan) -> dict[str, Any]:
    sizes = dict(zip(plan.names, plan.split_shape, strict=True))
    splits = [dim for dim in Scope.parse(scope).dims if isinstance(dim, SplitDimension)]
    return {axis.name: sizes[axis.name] for axis in flatten_axes(splits)}


def torch_layer(name: NormName, layout: Layout, plan: Plan) -> TorchReference | None:
    """Return torch's own layer; None for PowerNorm, which torch does not have."""
    is_image, features = len(plan.shape) == 4, plan.shape[layout.feature]
    groups = plan.split_shape[layout.feature]
    normalized = plan.shape[1:] if is_image else (features,)
    kinds: dict[NormName, tuple[type[nn.Module], tuple[Any, ...], dict[str, Any]]] = {
        "batch": (nn.BatchNorm2d if is_image else nn.BatchNorm1d, (features,), {}),
        "layer": (nn.LayerNorm, (normalized,), {}),
        "instance": (nn.InstanceNorm2d if is_image else nn.InstanceNorm1d, (features,), {"affine": True}),
        "group": (nn.GroupNorm, (groups, features), {}),
        "rms": (nn.RMSNorm, (normalized,), {}),
    }
    if name not in kinds:
        return None
    kind, arguments, options = kinds[name]
    before, after, code = _arrangement(name, is_image, plan.shape)

    def run(x: Tensor, norm: Norm) -> Tensor:
        layer = kind(*arguments, **options).to(x.dtype)
        layer.load_state_dict(norm.state_dict())
        result: Tensor = after(layer(before(x)))
        return result

    words = [*(str(a[0] if a == (features,) else a) for a in arguments), *(f"{k}={v}" for k, v in options.items())]
    return TorchReference(code.format(f"nn.{kind.__name__}({', '.join(words)})"), run)


Rearrange = Callable[[Tensor], Tensor]


def _arrangement(name: NormName, is_image: bool, shape: Shape) -> tuple[Rearrange, Rearrange, str]:
    """Return how text gets to torch's layers, which expect channels before positions, and back."""
    if not is_image and name in ("batch", "instance"):
        return (
            *(lambda x: x.transpose(1, 2), lambda y: y.transpose(1, 2)),
            "{}(x.transpose(1, 2)).transpose(1, 2)",
        )
    if not is_image and name == "group":  # every token is a sample
        return lambda x: x.flatten(0, 1), lambda y: y.reshape(shape), "{}(x.flatten(0, 1)).view_as(x)"
    return lambda x: x, lambda y: y, "{}(x)"


def torch_expression(norm: Norm, plan: Plan) -> TorchReference:
    """Return the norm as plain tensor operations, for scopes without a layer in torch."""
    dims = plan.reduced

    def run(x: Tensor, norm: Norm) -> Tensor:
        eps = torch.finfo(x.dtype).eps if norm.eps is None else norm.eps
        work = x.reshape(plan.split_shape)
        if norm.running_square is not None:
            y = work / torch.sqrt(norm.running_square.reshape(plan.broadcast_shape(norm.tracked)) + eps)
        elif norm.statistic.centers:
            variance, mean = torch.var_mean(work, dims, correction=0, keepdim=True)
            y = (work - mean) / torch.sqrt(variance + eps)
        else:
            y = work / torch.sqrt(work.square().mean(dims, keepdim=True) + eps)
        if norm.axes is not None:
            shape = plan.broadcast_shape(norm.axes.names)
            y = y if norm.weight is None else y * norm.weight.reshape(shape)
            y = y if norm.bias is None else y + norm.bias.reshape(shape)
        return y.reshape(x.shape)

    view = "x" if plan.split_shape == plan.shape else f"x.view{plan.split_shape}"
    if norm.running_square is not None:
        code = f"{view} / torch.sqrt(running_square + eps)"
    elif norm.statistic.centers:
        code = f"variance, mean = torch.var_mean({view}, {dims}, correction=0, keepdim=True)"
    else:
        code = f"mean_square = {view}.square().mean({dims}, keepdim=True)"
    return TorchReference(code, run)
