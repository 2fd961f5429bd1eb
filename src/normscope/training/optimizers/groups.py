"""The optimisers of one model as a team: each parameter has one, and all follow one schedule."""

import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from normscope.errors import WeightsError
from normscope.training.config import TrainConfig
from normscope.training.optimizers.lazy_torch import AdamW
from normscope.training.optimizers.muon import Muon


class Team:
    """Muon for the matrices inside the blocks and AdamW for the rest; or AdamW for all.

    An embedding is a list of rows of which each batch touches a few, and a head's rows are logits of their own: to
    make their steps orthogonal would mix tokens that have nothing to do with each other, so they go to AdamW.

    Args:
        model: whose parameters they are.
        config: rates, decay and momenta.
    """

    def __init__(self, model: nn.Module, config: TrainConfig) -> None:
        # Those that are tied come up once; a frozen one does not learn and needs no one.
        self._names = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        matrices = [weight for name, weight in self._names.items() if _is_inner_matrix(name, weight)]
        chosen = set(map(id, matrices))
        rest = [weight for weight in self._names.values() if id(weight) not in chosen]
        betas = (config.beta1, config.beta2)
        groups = [{"params": rest, "lr": config.rate, "weight_decay": 0.0}] if rest else []
        self._optimisers: list[Optimizer] = []
        if matrices and config.optimiser == "muon":
            muon = Muon(
                matrices,
                config.matrix_rate,
                config.momentum,
                weight_decay=config.weight_decay,
                steps=config.muon_steps,
            )
            self._optimisers.append(muon)
        elif matrices:
            groups.append({"params": matrices, "lr": config.matrix_rate, "weight_decay": config.weight_decay})
        if groups:
            # Fused is one pass over each weight. The default takes ten, and Python's time for each.
            self._optimisers.append(AdamW(groups, betas=betas, fused=True))
        self._peaks = [(group, group["lr"]) for group in self._groups()]

    @property
    def parameters(self) -> list[Tensor]:
        return list(self._names.values())

    def step(self, factor: float) -> None:
        """Change the weights, with every rate at this share of its peak."""
        for group, peak in self._peaks:
            group["lr"] = peak * factor
        for optimiser in self._optimisers:
            optimiser.step()

    def zero_grad(self) -> None:
        for weight in self._names.values():
            weight.grad = None

    def directions(self) -> Iterator[Tensor]:
        """What products make of the gradients on their way to a step: Muon's; AdamW takes each number by itself."""
        for optimiser in self._optimisers:
            if isinstance(optimiser, Muon):
                yield from optimiser.directions()

    def tensors(self) -> dict[str, Tensor]:
        """All that the optimisers remember, as `parameter:what`."""
        found = {}
        for name, weight in self._names.items():
            for optimiser in self._optimisers:
                for what, value in optimiser.state.get(weight, {}).items():
                    found[f"{name}:{what}"] = value
        return found

    def expected(self) -> dict[str, Tensor]:
        """What `tensors` gives after a step, without numbers."""
        found: dict[str, Tensor] = {}
        scalar = torch.float64 if torch.get_default_dtype() == torch.float64 else torch.float32
        for optimiser in self._optimisers:
            chosen = set(map(id, _weights(optimiser)))
            for name, weight in self._names.items():
                if id(weight) in chosen:
                    own = torch.empty_like(weight, device="meta")
                    whats = {"momentum": own} if isinstance(optimiser, Muon) else {"exp_avg": own, "exp_avg_sq": own}
                    if not isinstance(optimiser, Muon):
                        whats["step"] = torch.empty((), dtype=scalar, device="meta")
                    found |= {f"{name}:{what}": value for what, value in whats.items()}
        return found

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Remember what `tensors` gave."""
        owners = {id(weight): optimiser for optimiser in self._optimisers for weight in _weights(optimiser)}
        for optimiser in self._optimisers:
            optimiser.state.clear()
        for key, value in tensors.items():
            name, _, what = key.rpartition(":")
            if name not in self._names:
                raise WeightsError(f"the optimisers remember a parameter {name!r} that the model does not have")
            weight = self._names[name]
            owners[id(weight)].state[weight][what] = value.to(weight.device).clone()

    def _groups(self) -> Iterator[dict[str, float]]:
        for optimiser in self._optimisers:
            yield from optimiser.param_groups


def _weights(optimiser: Optimizer) -> list[Tensor]:
    return [weight for group in optimiser.param_groups for weight in group["params"]]


def _is_inner_matrix(name: str, weight: Tensor) -> bool:
    return weight.dim() == 2 and ".blocks." in f".{name}"


def gradient_norm(parameters: list[Tensor]) -> float:
    """The length of all gradients as one vector; infinite only if one of their numbers is, whatever their squares."""
    gradients = [weight.grad for weight in parameters if weight.grad is not None]
    length = _length(gradients, None)
    return length if math.isfinite(length) else _length(gradients, torch.float64)  # which takes many times as long


def _length(tensors: list[Tensor], dtype: torch.dtype | None) -> float:
    length: float = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(tensors, dtype=dtype))).item()
    return length
