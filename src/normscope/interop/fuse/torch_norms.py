"""Convert torch.nn norms to the normscope layers of the same name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

import normscope.blocks.norm as ours
from normscope.interop.fuse.change import ClassChange
from normscope.tracing.module_trials import random_input

TORCH_NORM_CLASSES: tuple[type[nn.Module], ...] = (
    nn.LayerNorm,
    nn.RMSNorm,
    nn.GroupNorm,
    _NormBase,
    nn.LocalResponseNorm,
)
"""All norm classes of torch.nn, including subclasses; those that are skipped are reported."""


@dataclass(frozen=True)
class TorchNormConversion:
    """The attributes that the constructor of the normscope layer takes, and input shapes to verify it with."""

    attributes: tuple[str, ...]
    shapes: Callable[[Any], tuple[tuple[int, ...], ...]]

    def convert(self, old: Any) -> ours.Norm:
        """Make the layer of the same name on the meta device. The parameters count, not the flags."""
        bias = getattr(old, "bias", None) is not None
        args = [getattr(old, name) for name in self.attributes] + [old.weight is not None or bias]
        args += [old.running_mean is not None] if isinstance(old, _NormBase) else []
        options = {} if isinstance(old, nn.RMSNorm) else {"bias": bias}
        made: ours.Norm = getattr(ours, type(old).__name__)(*args, **options, device="meta")
        return made


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


_ROW, _GROUP = ("normalized_shape", "eps"), ("num_groups", "num_channels", "eps")
_CHANNELS = ("num_features", "eps", "momentum")
TORCH_NORMS: Mapping[type[nn.Module], TorchNormConversion] = {
    nn.LayerNorm: TorchNormConversion(_ROW, _rows),
    nn.RMSNorm: TorchNormConversion(_ROW, _rows),
    nn.GroupNorm: TorchNormConversion(_GROUP, _images((5,), (3, 4))),
    nn.BatchNorm1d: TorchNormConversion(_CHANNELS, _images((), (5,))),
    nn.BatchNorm2d: TorchNormConversion(_CHANNELS, _images((4, 3))),
    nn.BatchNorm3d: TorchNormConversion(_CHANNELS, _images((2, 3, 2))),
    nn.InstanceNorm1d: TorchNormConversion(_CHANNELS, _images((5,), samples=None)),
    nn.InstanceNorm2d: TorchNormConversion(_CHANNELS, _images((4, 3), samples=None)),
    nn.InstanceNorm3d: TorchNormConversion(_CHANNELS, _images((2, 3, 2), samples=None)),
}


def torch_change(old: nn.Module) -> ClassChange:
    """The change of a torch.nn norm to the normscope layer."""
    made = TORCH_NORMS[type(old)].convert(old)
    missing = tuple(
        (where, name)
        for where in ("_parameters", "_buffers")
        for name, tensor in vars(made)[where].items()
        if tensor is None
    )
    return ClassChange(type(made), f"normscope.{type(made).__name__}", "norm", vars(made), missing)


def torch_inputs(old: nn.Module, dtype: torch.dtype) -> list[Tensor]:
    """Inputs of scale 1, and small ones where eps matters."""
    shapes = TORCH_NORMS[type(old)].shapes(old)
    return [random_input(shape, scale, dtype, seed=40) for shape in shapes for scale in (1.0, 1e-3)]
