"""The optimizers of a model: Muon for matrices, AdamW for the rest, on one learning-rate schedule."""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn

from normscope.blocks.lora import is_adapter
from normscope.errors import WeightsError
from normscope.runtime.ranks import ALONE, Ranks
from normscope.storage.tensor_spec import TensorSpec
from normscope.training.config import TrainConfig
from normscope.training.optimizers.lazy_torch import AdamW
from normscope.training.optimizers.muon import Muon, group_by_shape
from normscope.training.parallel.dealing import Broadcasts, deal


class OptimizerGroup:
    """Muon for the matrices in the blocks and AdamW for all other parameters; or AdamW for everything.

    Embedding and head go to AdamW: their rows belong to single tokens, and orthogonalizing an update would mix them.
    So do LoRA adapters: an orthogonalized update of a factor says nothing about the update of the product.

    With several ranks, each updates some of the parameters and sends them to the others: it keeps only their optimizer
    state, and the result is that of one process with the same gradients, bit for bit.

    Args:
        model: The model to optimize.
        config: Learning rates, weight decay and momentum.
        ranks: The processes that train together, with equal gradients.
    """

    def __init__(self, model: nn.Module, config: TrainConfig, ranks: Ranks = ALONE) -> None:
        self._ranks = ranks
        # Tied parameters appear once; frozen ones are left out.
        self._names = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        inner = {name: weight for name, weight in self._names.items() if _is_inner_matrix(name, weight)}
        self._muon_names = inner if config.optimizer == "muon" else {}
        self._name_of: dict[Tensor, str] = {weight: name for name, weight in self._names.items()}
        self._owner_of = self._deal(config.ns_steps)
        self._muon, self._adamw = self._make_muon(config), self._make_adamw(config, inner)
        self._optimizers = [optimizer for optimizer in (self._muon, self._adamw) if optimizer is not None]
        param_groups = [group for optimizer in self._optimizers for group in optimizer.param_groups]
        self._peak_lrs = [(group, group["lr"]) for group in param_groups]

    def _deal(self, ns_steps: int) -> dict[str, int]:
        """The rank that updates each parameter: the work of Muon is balanced first, then the memory."""
        muon = deal({name: muon_cost(weight, ns_steps) for name, weight in self._muon_names.items()}, self._ranks.size)
        loads = [0.0] * self._ranks.size
        for name, owner in muon.items():
            loads[owner] += self._names[name].numel()
        others = {name: 2.0 * weight.numel() for name, weight in self._names.items() if name not in muon}
        return {**muon, **deal(others, self._ranks.size, loads)}

    def _is_own(self, name: str) -> bool:
        return self._owner_of[name] == self._ranks.rank

    def _make_muon(self, config: TrainConfig) -> Muon | None:
        own = [weight for name, weight in self._muon_names.items() if self._is_own(name)]
        group = {"params": own, "lr": config.matrix_lr, "weight_decay": config.weight_decay}
        return Muon([group], momentum=config.momentum, ns_steps=config.ns_steps) if own else None

    def _make_adamw(self, config: TrainConfig, inner: Collection[str]) -> AdamW | None:
        parameters = self._adamw_parameters()
        rest = [weight for name, weight in parameters.items() if name not in inner]
        matrices = [weight for name, weight in parameters.items() if name in inner]
        groups = [
            {"params": rest, "lr": config.lr, "weight_decay": 0.0},
            {"params": matrices, "lr": config.matrix_lr, "weight_decay": config.weight_decay},
        ]
        used = [group for group in groups if group["params"]]
        # fused=True makes one pass over each parameter; the default makes ten.
        return AdamW(used, betas=(config.beta1, config.beta2), fused=True) if used else None

    def _adamw_parameters(self) -> dict[str, Tensor]:
        """What this rank's AdamW updates, by name."""
        return {
            name: weight for name, weight in self._names.items() if name not in self._muon_names and self._is_own(name)
        }

    @property
    def owners(self) -> Mapping[str, int]:
        """The rank that updates each trained parameter."""
        return self._owner_of

    @property
    def parameters(self) -> list[Tensor]:
        return list(self._names.values())

    @property
    def gradients(self) -> list[Tensor]:
        """The gradients of all parameters that have one."""
        return [weight.grad for weight in self._names.values() if weight.grad is not None]

    def gradient_norm(self) -> float:
        """The norm of all gradients together."""
        return global_norm(self.gradients)

    def step(self, lr_scale: float) -> None:
        """Update the parameters, with every learning rate at this fraction of its peak."""
        for group, peak in self._peak_lrs:
            group["lr"] = peak * lr_scale
        if self._ranks.size == 1:
            for optimizer in self._optimizers:
                optimizer.step()
        else:
            self._step_own()

    def _step_own(self) -> None:
        """Update this rank's parameters, and exchange them while others are being updated."""
        broadcasts = Broadcasts(self._ranks)

        def send(weights: Iterable[Tensor]) -> None:
            broadcasts.start((weight.detach(), self._owner_of[self._name_of[weight]]) for weight in weights)

        for weights in group_by_shape(self._muon_names.values()):
            if self._muon is not None:
                self._muon.step_matrices([weight for weight in weights if self._is_own(self._name_of[weight])])
            send(weights)
        if self._adamw is not None:
            self._adamw.step()
        send(weight for name, weight in self._names.items() if name not in self._muon_names)
        broadcasts.wait()

    def zero_grad(self) -> None:
        for weight in self._names.values():
            weight.grad = None

    def updates(self) -> Iterator[Tensor]:
        """Muon's orthogonalized updates for the current gradients. AdamW is elementwise and has none."""
        if self._muon is not None:
            yield from self._muon.updates()

    def tensors(self) -> dict[str, Tensor]:
        """The state of this rank's optimizers, as `parameter:key`."""
        return {
            f"{name}:{key}": value
            for name, weight in self._names.items()
            for optimizer in self._optimizers
            for key, value in optimizer.state.get(weight, {}).items()
        }

    def expected_tensors(self) -> dict[str, TensorSpec]:
        """What `tensors` returns after a step, on all ranks together."""
        step = torch.float64 if torch.get_default_dtype() == torch.float64 else torch.float32
        found: dict[str, TensorSpec] = {}
        for name, weight in self._names.items():
            own = TensorSpec(tuple(weight.shape), weight.dtype)
            adamw = {"exp_avg": own, "exp_avg_sq": own, "step": TensorSpec((), step)}
            state = {"momentum": own} if name in self._muon_names else adamw
            found |= {f"{name}:{key}": spec for key, spec in state.items()}
        return found

    def own_tensors(self) -> set[str]:
        """The names of what `load` takes on this rank."""
        return {name for name in self.expected_tensors() if self._is_own(name.rpartition(":")[0])}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `tensors` returned."""
        for optimizer in self._optimizers:
            optimizer.state.clear()
        for full_name, value in tensors.items():
            name, _, key = full_name.rpartition(":")
            if name not in self._names:
                raise WeightsError(f"the optimizer state has a parameter {name!r} that the model does not have")
            self._load(name, key, value)

    def _load(self, name: str, key: str, value: Tensor) -> None:
        weight = self._names[name]
        optimizer = self._muon if name in self._muon_names else self._adamw
        assert optimizer is not None
        optimizer.state[weight][key] = value.to(weight.device).clone()


def muon_cost(weight: Tensor, ns_steps: int) -> float:
    """The multiplications of a matrix's orthogonalization."""
    n, m = sorted(weight.shape)
    return float(n * n * (2 * m + 4 * ns_steps * n))


def _is_inner_matrix(name: str, weight: Tensor) -> bool:
    return weight.dim() == 2 and ".blocks." in f".{name}" and not is_adapter(name)


def global_norm(tensors: list[Tensor]) -> float:
    """The norm of all tensors together; computed again in float64 if the squares overflow."""
    norm = math.inf
    for dtype in (None, torch.float64):  # float64 is many times slower
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(tensors, dtype=dtype))).item()
        if math.isfinite(norm):
            break
    return norm
