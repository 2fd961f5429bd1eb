"""Muon: momentum whose every direction has the same weight."""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from normscope.checks import check_flags, check_positive_number, is_integer, is_number, short_repr
from normscope.errors import ConfigError, DtypeError
from normscope.training.optimizers.lazy_torch import Light
from normscope.training.optimizers.orthogonalize import POLAR_EXPRESS, orthogonalise

_LARGEST = torch.finfo(torch.float32).max
"""Of what weights are multiplied by: torch refuses more, and weights that are not finite are told of by name later."""


class Muon(Light):
    r"""Stochastic gradient descent with Nesterov momentum, whose step is made orthogonal. For matrices only.

    Formula:
        m = momentum m + (1 - momentum) g;   u = orthogonal(momentum m + (1 - momentum) g)
        W = W - lr weight_decay W - lr sqrt(max(1, rows / columns)) u

    torch.optim.Muon multiplies in bfloat16, which some CPUs cannot do at all and most do slowly, and takes one
    matrix at a time. Here the products are in the weights' own type, and matrices of one size go together.

    Args:
        params: matrices, or groups of them as torch's optimisers take.
        lr: the learning rate, the size of a step in every direction.
        momentum: how much of the past stays in the direction.
        nesterov: look one step ahead.
        weight_decay: how much of a weight goes in each step, times the learning rate.
        steps: how many polynomials make the step orthogonal; 3 are cheaper and nearly as good.

    Example:
        >>> weight = torch.nn.Parameter(torch.eye(3))
        >>> optimiser = Muon([weight], lr=0.1)
        >>> weight.grad = torch.diag(torch.tensor([1.0, 0.1, 0.01]))  # directions of very different size ...
        >>> optimiser.step()
        >>> [round(x, 2) for x in weight.diagonal().tolist()]  # ... all go the same way
        [0.9, 0.9, 0.9]

    Papers:
        Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks"; Amsel et al. 2025, "The Polar
        Express: Optimal Matrix Sign Methods and Their Application to the Muon Algorithm".
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.02,
        momentum: float = 0.95,
        *,
        nesterov: bool = True,
        weight_decay: float = 0.0,
        steps: int = len(POLAR_EXPRESS),
    ) -> None:
        check_positive_number(lr=lr)
        check_flags(nesterov=nesterov)
        if not (is_number(momentum) and 0 <= momentum < 1):
            raise ConfigError(f"momentum={momentum!r} must be at least zero and below one")
        if not (is_number(weight_decay) and 0 <= weight_decay < math.inf):
            raise ConfigError(f"weight_decay={weight_decay!r} must be a finite number, zero or more")
        if not (is_integer(steps) and steps <= len(POLAR_EXPRESS)):
            raise ConfigError(f"steps={steps!r} must be a whole number from 1 to {len(POLAR_EXPRESS)}")
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "nesterov": nesterov,
            "weight_decay": weight_decay,
            "steps": steps,
        }
        if not isinstance(params, Iterable):
            raise DtypeError(f"Muon takes matrices, but got {short_repr(params)}\nfix: Muon([layer.weight, ...])")
        try:
            super().__init__(params, defaults)
        except ValueError as error:  # torch says what is wrong
            raise ConfigError(f"Muon takes matrices: {error}\nfix: Muon([layer.weight, ...])") from error
        except (TypeError, RuntimeError) as error:
            raise DtypeError(f"Muon takes matrices: {error}\nfix: Muon([layer.weight, ...])") from error
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.dim() != 2:
                    raise ConfigError(
                        f"Muon is for matrices, but got a parameter of shape {tuple(weight.shape)}\n"
                        f"fix: give embeddings, heads, gains and biases to AdamW"
                    )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step; returns what the closure returns, if there is one."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for weights in _of_one_size(group["params"]):
                self._step(weights, **{name: value for name, value in group.items() if name in self.defaults})
        return loss

    def _step(
        self, weights: list[Tensor], lr: float, momentum: float, nesterov: bool, weight_decay: float, steps: int
    ) -> None:
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        memories = [self._memory(weight) for weight in weights]
        torch._foreach_lerp_(memories, gradients, 1 - momentum)
        directions = torch._foreach_lerp(gradients, memories, momentum) if nesterov else memories
        updates = _updates(directions, steps)
        if weight_decay:
            torch._foreach_mul_(weights, max(-_LARGEST, 1 - lr * weight_decay))
        for weight, update in zip(weights, updates.unbind(), strict=True):
            rows, columns = weight.shape
            rate = min(_LARGEST, lr * max(1.0, rows / columns) ** 0.5)
            weight.add_(update if _lies(weight) else update.T, alpha=-rate)

    @torch.no_grad()
    def directions(self) -> Iterator[Tensor]:
        """The updates that the gradients alone would give, without momentum; nothing is changed."""
        for group in self.param_groups:
            for weights in _of_one_size(group["params"]):
                yield _updates([weight.grad for weight in weights if weight.grad is not None], group["steps"])

    def _memory(self, weight: Tensor) -> Tensor:
        state = self.state[weight]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(weight)
        memory: Tensor = state["momentum"]
        return memory


def _updates(directions: Iterable[Tensor], steps: int) -> Tensor:
    """Matrices of one size, laid down where they are high, and made orthogonal: (k, n, m)."""
    return orthogonalise(torch.stack([matrix if _lies(matrix) else matrix.T for matrix in directions]), steps)


def _lies(matrix: Tensor) -> bool:
    """Whether it is at least as wide as high."""
    return matrix.shape[0] <= matrix.shape[1]


def _of_one_size(weights: Iterable[Tensor]) -> list[list[Tensor]]:
    """Those that have a gradient, sorted into lists whose members can be stacked once the high ones are laid down."""
    found: dict[Any, list[Tensor]] = {}
    for weight in weights:
        if weight.grad is not None:
            found.setdefault((*sorted(weight.shape), weight.device, weight.dtype), []).append(weight)
    return list(found.values())
