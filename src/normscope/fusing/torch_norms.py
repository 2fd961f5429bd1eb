"""Convert torch.nn norms to the normscope layers of the same name."""

from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

import normscope.blocks.norm as ours
from normscope.fusing.change import ClassChange
from normscope.tracing.module_trials import random_input

TORCH_NORM_CLASSES = nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, _NormBase, nn.LocalResponseNorm
"""All norm classes of torch.nn, including subclasses; those that are skipped are reported."""


def _rows(old: Any) -> tuple[tuple[int, ...], ...]:
    shape = tuple(old.normalized_shape)
    return (3, *shape), (2, 3, *shape)


def _images(*spatial_shapes: tuple[int, ...], samples: int | None = 16) -> Callable[[Any], tuple[tuple[int, ...], ...]]:
    """Batches with these spatial shapes; for `samples=None` also unbatched inputs."""

    def shapes(old: Any) -> tuple[tuple[int, ...], ...]:
        c = old.num_channels if isinstance(old, nn.GroupNorm) else old.num_features
        single = tuple((c, *shape) for shape in spatial_shapes) if samples is None else ()
        return (*((samples or 4, c, *shape) for shape in spatial_shapes), *single)

    return shapes


TORCH_NORMS: Mapping[type[nn.Module], Callable[[Any], tuple[tuple[int, ...], ...]]] = {
    nn.LayerNorm: _rows,
    nn.RMSNorm: _rows,
    nn.GroupNorm: _images((5,), (3, 4)),
    nn.BatchNorm1d: _images((), (5,)),
    nn.BatchNorm2d: _images((4, 3)),
    nn.BatchNorm3d: _images((2, 3, 2)),
    nn.InstanceNorm1d: _images((5,), samples=None),
    nn.InstanceNorm2d: _images((4, 3), samples=None),
    nn.InstanceNorm3d: _images((2, 3, 2), samples=None),
}
"""The norms that have a normscope layer of the same name, and input shapes to verify it with."""


def torch_change(old: nn.Module) -> ClassChange:
    """The change of a torch.nn norm to the normscope layer."""
    made = _convert(old)
    missing = tuple(
        (where, name)
        for where in ("_parameters", "_buffers")
        for name, tensor in vars(made)[where].items()
        if tensor is None
    )
    return ClassChange(type(made), f"normscope.{type(made).__name__}", "norm", vars(made), missing)


def _convert(old: nn.Module) -> ours.Norm:
    """Make the layer of the same name on the meta device. The parameters count, not the flags."""
    kind: Callable[..., ours.Norm] = getattr(ours, type(old).__name__)
    weight, bias, mean = (getattr(old, name, None) is not None for name in ("weight", "bias", "running_mean"))
    affine = weight or bias
    flags = {"affine": affine, "elementwise_affine": affine, "bias": bias, "track_running_stats": mean}
    settings: dict[str, Any] = {**vars(old), **flags}
    return kind(**{name: settings[name] for name in signature(kind).parameters if name in settings}, device="meta")


def torch_inputs(old: nn.Module, dtype: torch.dtype) -> list[Tensor]:
    """Inputs of scale 1, and small ones where eps matters."""
    shapes = TORCH_NORMS[type(old)](old)
    return [random_input(shape, scale, dtype, seed=40) for shape in shapes for scale in (1.0, 1e-3)]
