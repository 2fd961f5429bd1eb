"""The optimizers of a model: Muon for matrices, AdamW for the rest, on one learning-rate schedule."""

import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from normscope.blocks.lora import is_adapter
from normscope.errors import WeightsError
from normscope.training.config import TrainConfig
from normscope.training.optimizers.lazy_torch import AdamW
from normscope.training.optimizers.muon import Muon


class OptimizerGroup:
    """Muon for the matrices in the blocks and AdamW for all other parameters; or AdamW for everything.

    Embedding and head go to AdamW: their rows belong to single tokens, and orthogonalizing an update would mix them.
    So do LoRA adapters: an orthogonalized update of a factor says nothing about the update of the product.

    Args:
        model: The model to optimize.
        config: Learning rates, weight decay and momentum.
    """

    def __init__(self, model: nn.Module, config: TrainConfig) -> None:
        # Tied parameters appear once; frozen ones are left out.
        self._names = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        matrices = [weight for name, weight in self._names.items() if _is_inner_matrix(name, weight)]
        rest = [weight for name, weight in self._names.items() if not _is_inner_matrix(name, weight)]
        adamw_groups = [{"params": rest, "lr": config.lr, "weight_decay": 0.0}] if rest else []
        self._optimizers: list[Optimizer] = []
        inner = {"params": matrices, "lr": config.matrix_lr, "weight_decay": config.weight_decay}
        if matrices and config.optimizer == "muon":
            self._optimizers.append(Muon([inner], momentum=config.momentum, ns_steps=config.ns_steps))
        elif matrices:
            adamw_groups.append(inner)
        if adamw_groups:
            # fused=True makes one pass over each parameter; the default makes ten.
            self._optimizers.append(AdamW(adamw_groups, betas=(config.beta1, config.beta2), fused=True))
        param_groups = [(optimizer, group) for optimizer in self._optimizers for group in optimizer.param_groups]
        self._peak_lrs = [(group, group["lr"]) for _, group in param_groups]
        self._owners = {weight: optimizer for optimizer, group in param_groups for weight in group["params"]}

    @property
    def parameters(self) -> list[Tensor]:
        return list(self._names.values())

    @property
    def gradients(self) -> list[Tensor]:
        """The gradients of all parameters that have one."""
        return [weight.grad for weight in self._names.values() if weight.grad is not None]

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
        return {
            f"{name}:{key}": value
            for name, weight in self._names.items()
            for key, value in self._owners[weight].state.get(weight, {}).items()
        }

    def expected_tensors(self) -> dict[str, Tensor]:
        """What `tensors` returns after a step, on the meta device."""
        found: dict[str, Tensor] = {}
        scalar = torch.float64 if torch.get_default_dtype() == torch.float64 else torch.float32
        step = torch.empty((), dtype=scalar, device="meta")
        for name, weight in self._names.items():
            own = torch.empty_like(weight, device="meta")
            adamw = {"exp_avg": own, "exp_avg_sq": own, "step": step}
            state = {"momentum": own} if isinstance(self._owners[weight], Muon) else adamw
            found |= {f"{name}:{key}": value for key, value in state.items()}
        return found

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `tensors` returned."""
        for optimizer in self._optimizers:
            optimizer.state.clear()
        for full_name, value in tensors.items():
            name, _, key = full_name.rpartition(":")
            if name not in self._names:
                raise WeightsError(f"the optimizer state has a parameter {name!r} that the model does not have")
            weight = self._names[name]
            self._owners[weight].state[weight][key] = value.to(weight.device).clone()


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
