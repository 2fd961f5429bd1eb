"""Parameters that FSDP2 shards: each rank keeps a part as a DTensor, and the whole exists only while modules run."""

import sys
from collections.abc import Iterator
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn


def is_dtensor(value: object) -> TypeGuard[Tensor]:
    """Whether a value is a DTensor, which a rank cannot read without the others."""
    return isinstance(value, dtensor_classes())


def dtensor_classes() -> tuple[type, ...]:
    """Return the class DTensor; nothing while its module, which takes long to import, is not loaded."""
    module = sys.modules.get("torch.distributed.tensor")
    return () if module is None else (module.DTensor,)


def local_part(tensor: Tensor) -> Tensor:
    """Return the part of a DTensor that this rank has, or the tensor itself if it is no DTensor."""
    if not is_dtensor(tensor):
        return tensor
    with torch.no_grad():  # otherwise it is a step of autograd
        part: Tensor = tensor.to_local()  # type: ignore[attr-defined]
    return part


def is_sharded_module(module: nn.Module) -> bool:
    """Whether `fully_shard` was applied to this very module."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and isinstance(module, fsdp.FSDPModule)


def original_class(module: nn.Module) -> type[nn.Module]:
    """Return the class of a module, without the subclass that `fully_shard` makes of it."""
    return type(module).__mro__[2] if is_sharded_module(module) else type(module)


def sharded_by_whole(model: nn.Module) -> dict[int, nn.Parameter]:
    """Return the sharded parameter for the id of each whole one, which a model may have between two passes."""
    return {id(p._unsharded_param): p.sharded_param for p in _fsdp_parameters(model) if hasattr(p, "_unsharded_param")}


def _fsdp_parameters(model: nn.Module) -> Iterator[Any]:
    """FSDP2's own entries of the parameters; torch has no public way from a whole parameter to its shards."""
    for module in model.modules():
        if is_sharded_module(module):
            for group in module._get_fsdp_state()._fsdp_param_groups:  # type: ignore[operator]
                yield from group.fsdp_params


def mesh_ranks(tensor: Tensor) -> list[int]:
    """Return the ranks that a DTensor is spread over."""
    return sorted(tensor.device_mesh.mesh.flatten().tolist())  # type: ignore[attr-defined]


def shard_name(tensor: Tensor) -> str:
    """Name the part that this rank has: equal on ranks with the same part, empty if every rank has the whole.

    A name has the coordinate along each dimension of the mesh that splits the tensor.
    """
    placements, coordinate = tensor.placements, tensor.device_mesh.get_coordinate()  # type: ignore[attr-defined]
    split = [(i, str(p)) for i, p in enumerate(placements) if not p.is_replicate()]
    return ", ".join(f"{coordinate[i]} of {name}" for i, name in split)
