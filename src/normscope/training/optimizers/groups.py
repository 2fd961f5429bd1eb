"""The optimizers of a model: Muon for matrices, AdamW for the rest, on one learning-rate schedule."""

import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from normscope.errors import WeightsError
from normscope.training.config import TrainConfig
from normscope.training.optimizers.lazy_torch import AdamW
from normscope.training.optimizers.muon import Muon


class OptimizerGroup:
    """Muon for the matrices in the blocks and AdamW for all other parameters; or AdamW for everything.

    Embedding and head go to AdamW: their rows belong to single tokens, and orthogonalizing an update would mix them.

    Args:
        model: The model to optimize.
        config: Learning rates, weight decay and momentum.
    """

    def __init__(self, model: nn.Module, config: TrainConfig) -> None:
        # Tied parameters appear once; frozen ones are left out.
        self._names = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        matrices = [weight for name, weight in self._names.items() if _is_inner_matrix(name, weight)]
        chosen = set(map(id, matrices))
        rest = [weight for weight in self._names.values() if id(weight) not in chosen]
        betas = (config.beta1, config.beta2)
        groups = [{"params": rest, "lr": config.lr, "weight_decay": 0.0}] if rest else []
        self._optimizers: list[Optimizer] = []
        if matrices and config.optimizer == "muon":
            muon = Muon(
                matrices,
                config.matrix_lr,
                config.momentum,
                weight_decay=config.weight_decay,
                steps=config.muon_steps,
            )
            self._optimizers.append(muon)
        elif matrices:
            groups.append({"params": matrices, "lr": config.matrix_lr, "weight_decay": config.weight_decay})
        if groups:
            # fused=True makes one pass over each parameter; the default makes ten.
            self._optimizers.append(AdamW(groups, betas=betas, fused=True))
        self._peak_lrs = [(group, group["lr"]) for group in self._groups()]

    @property
    def parameters(self) -> list[Tensor]:
        return list(self._names.values())

    def step(self, lr_scale: float) -> None:
        """Update the parameters, with every learning rate at this fraction of its peak."""
        for group, peak in self._peak_lrs:
            group["lr"] = peak * lr_scale
        for optimizer in self._optimizers:
            optimizer.step()

    def zero_grad(self) -> None:
        for weight in self._names.values():
            weight.grad = None

    def updates(self) -> Iterator[Tensor]:
        """Muon's orthogonalized updates for the current gradients. AdamW is elementwise and has none."""
        for optimizer in self._optimizers:
            if isinstance(optimizer, Muon):
                yield from optimizer.updates()

    def tensors(self) -> dict[str, Tensor]:
        """The state of all optimizers, as `parameter:key`."""
        found = {}
        for name, weight in self._names.items():
            for optimizer in self._optimizers:
                for key, value in optimizer.state.get(weight, {}).items():
                    found[f"{name}:{key}"] = value
        return found

    def expected_tensors(self) -> dict[str, Tensor]:
        """What `tensors` returns after a step, on the meta device."""
        found: dict[str, Tensor] = {}
        scalar = torch.float64 if torch.get_default_dtype() == torch.float64 else torch.float32
        for optimizer in self._optimizers:
            chosen = set(map(id, _parameters(optimizer)))
            for name, weight in self._names.items():
                if id(weight) in chosen:
                    own = torch.empty_like(weight, device="meta")
                    state = {"momentum": own} if isinstance(optimizer, Muon) else {"exp_avg": own, "exp_avg_sq": own}
                    if not isinstance(optimizer, Muon):
                        state["step"] = torch.empty((), dtype=scalar, device="meta")
                    found |= {f"{name}:{key}": value for key, value in state.items()}
        return found

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `tensors` returned."""
        owners = {id(weight): optimizer for optimizer in self._optimizers for weight in _parameters(optimizer)}
        for optimizer in self._optimizers:
            optimizer.state.clear()
        for full_name, value in tensors.items():
            name, _, key = full_name.rpartition(":")
            if name not in self._names:
                raise WeightsError(f"the optimizer state has a parameter {name!r} that the model does not have")
            weight = self._names[name]
            owners[id(weight)].state[weight][key] = value.to(weight.device).clone()

    def _groups(self) -> Iterator[dict[str, float]]:
        for optimizer in self._optimizers:
            yield from optimizer.param_groups


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [weight for group in optimizer.param_groups for weight in group["params"]]


def _is_inner_matrix(name: str, weight: Tensor) -> bool:
    return weight.dim() == 2 and ".blocks." in f".{name}"


def grad_norm(parameters: list[Tensor]) -> float:
    """Global gradient norm; computed again in float64 if the squares overflow."""
    gradients = [weight.grad for weight in parameters if weight.grad is not None]
    norm = _global_norm(gradients, None)
    return norm if math.isfinite(norm) else _global_norm(gradients, torch.float64)  # many times slower


def _global_norm(tensors: list[Tensor], dtype: torch.dtype | None) -> float:
    norm: float = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(tensors, dtype=dtype))).item()
    return norm
