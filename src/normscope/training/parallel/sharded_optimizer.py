"""The optimizers of a model that FSDP2 has sharded: the same updates, computed where they need the least memory.

AdamW is elementwise, so each rank updates its own rows. Muon needs whole matrices: their gradients are gathered, their
owners orthogonalize, and each rank gets the update and applies its own rows.
"""

import math
from typing import Any, cast

import torch
from torch import Tensor, nn

from normscope.runtime.ranks import Ranks, rank_errors
from normscope.training.config import TrainConfig
from normscope.training.optimizers.groups import OptimizerGroup, global_norm
from normscope.training.optimizers.muon import apply_updates, group_by_shape, need_gradient
from normscope.training.parallel.dealing import Broadcasts

_SCALAR_STATE = "step"
"""The part of AdamW's state that has no rows."""


def full_tensor(tensor: Tensor) -> Tensor:
    """Gather a tensor that is sharded over the ranks; all of them have to take part."""
    if not is_sharded(tensor):
        return tensor
    with rank_errors():
        return cast(Tensor, cast(Any, tensor.detach()).full_tensor())


def is_sharded(tensor: Tensor) -> bool:
    return hasattr(tensor, "full_tensor")  # a DTensor; importing its class takes a second


def own_rows(tensor: Tensor, like: Tensor) -> Tensor:
    """This rank's rows of a whole tensor, as FSDP2 divides `like`."""
    from torch.distributed.tensor import distribute_tensor

    sharded: Any = like
    divided = distribute_tensor(tensor, sharded.device_mesh, sharded.placements, src_data_rank=None)
    return cast(Tensor, divided.to_local())


class ShardedOptimizerGroup(OptimizerGroup):
    """`OptimizerGroup` for parameters that are sharded over the ranks."""

    def __init__(self, model: nn.Module, config: TrainConfig, ranks: Ranks) -> None:
        super().__init__(model, config, ranks)
        # A rank that owns no matrix still applies the updates of the others.
        group = {"lr": config.matrix_lr, "weight_decay": config.weight_decay}
        self._muon_group = group if self._muon is None else self._muon.param_groups[0]
        if self._muon is None:
            self._peak_lrs.append((group, config.matrix_lr))

    def _adamw_parameters(self) -> dict[str, Tensor]:
        self._rows = {
            name: nn.Parameter(local_part(weight))
            for name, weight in self._names.items()
            if name not in self._muon_names
        }
        return dict(self._rows)

    @property
    def gradients(self) -> list[Tensor]:
        """This rank's rows of the gradients."""
        return [local_part(weight.grad) for weight in self._names.values() if weight.grad is not None]

    def gradient_norm(self) -> float:
        gradients = [gradient for gradient in self.gradients if gradient.numel()]
        own = global_norm(gradients) if gradients else 0.0
        return math.sqrt(self._ranks.sum(own * own)[0])

    def _step_own(self) -> None:
        for weights in group_by_shape(self._muon_names.values()):
            for i in range(0, len(weights), self._ranks.size):  # not all whole matrices of a shape at once
                self._step_matrices(weights[i : i + self._ranks.size])
        for name, rows in self._rows.items():
            gradient = self._names[name].grad
            rows.grad = None if gradient is None else local_part(gradient)
        if self._adamw is not None:
            self._adamw.step()
        for rows in self._rows.values():
            rows.grad = None

    @torch.no_grad()
    def _step_matrices(self, weights: list[Tensor]) -> None:
        owners = [self._owner_of[name] for name in map(self._name_of.__getitem__, weights)]
        gradients = {}
        for weight, owner in zip(weights, owners, strict=True):
            gradient = full_tensor(need_gradient(weight))
            if owner == self._ranks.rank:
                gradients[weight] = gradient
        own: dict[Tensor, Tensor] = {}
        if self._muon is not None and gradients:
            updates = self._muon.updates_for(list(gradients), list(gradients.values()), self._muon_group)
            own = dict(zip(gradients, updates, strict=True))
        full_updates = [own[weight] if weight in own else _empty(weight) for weight in weights]
        broadcasts = Broadcasts(self._ranks)
        broadcasts.start(zip(full_updates, owners, strict=True))
        broadcasts.wait()
        rows = [own_rows(update, weight) for update, weight in zip(full_updates, weights, strict=True)]
        apply_updates(
            [local_part(weight) for weight in weights], rows, [weight.shape for weight in weights], self._muon_group
        )

    def tensors(self) -> dict[str, Tensor]:
        """The state that this rank owns, as `parameter:key`; all ranks have to take part."""
        state = {
            f"{name}:{key}": value
            for name, weight in self._muon_names.items()
            if self._muon is not None
            for key, value in self._muon.state.get(weight, {}).items()
        }
        for name, rows in self._rows.items():
            for key, value in sorted(self._adamw_state(rows).items()):  # in one order on all ranks
                gathered = value if key == _SCALAR_STATE else full_tensor(_sharded_like(value, self._names[name]))
                if self._is_own(name):
                    state[f"{name}:{key}"] = gathered
        return state

    def _adamw_state(self, rows: Tensor) -> dict[str, Tensor]:
        return {} if self._adamw is None else dict(self._adamw.state.get(rows, {}))

    def own_tensors(self) -> set[str]:
        names = {name for name in self._names if name not in self._muon_names or self._is_own(name)}
        return {name for name in self.expected_tensors() if name.rpartition(":")[0] in names}

    def _load(self, name: str, key: str, value: Tensor) -> None:
        if name in self._muon_names:
            super()._load(name, key, value)
            return
        assert self._adamw is not None
        rows = value if key == _SCALAR_STATE else own_rows(value, self._names[name])
        self._adamw.state[self._rows[name]][key] = rows.to(self._rows[name].device, copy=True)


def local_part(tensor: Tensor) -> Tensor:
    """This rank's rows of a sharded tensor, which share its memory."""
    return cast(Tensor, cast(Any, tensor.detach()).to_local())


def _sharded_like(rows: Tensor, like: Tensor) -> Tensor:
    from torch.distributed.tensor import DTensor

    sharded: Any = like
    shape, stride = sharded.shape, sharded.stride()
    found = DTensor.from_local(rows, sharded.device_mesh, sharded.placements, shape=shape, stride=stride)
    return cast(Tensor, found)


def _empty(weight: Tensor) -> Tensor:
    return torch.empty(weight.shape, dtype=weight.dtype, device=weight.device)
