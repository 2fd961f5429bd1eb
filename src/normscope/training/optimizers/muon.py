"""The Muon optimizer: momentum SGD with orthogonalized updates.

Matrices are orthogonalized (all singular values set to about one) with matrix products only.
Axes: k matrices of one shape, each n x m with n <= m.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from normscope.checks import check_flags, check_positive_number, is_integer, is_number
from normscope.errors import ArgumentTypeError, ConfigError
from normscope.training.optimizers.lazy_torch import LightOptimizer
from normscope.training.optimizers.polar_express import POLAR_EXPRESS

_LARGEST = torch.finfo(torch.float32).max
"""Bound of the factors passed to torch, which rejects larger ones; overflowing weights are reported later, by name."""


class Muon(LightOptimizer):
    r"""SGD with Nesterov momentum and orthogonalized updates, for matrices only.

    Formula:
        m = momentum m + (1 - momentum) g;   u = orthogonal(momentum m + (1 - momentum) g)
        W = W - lr weight_decay W - lr sqrt(max(1, rows / columns)) u

    torch.optim.Muon multiplies in bfloat16, which is slow or unsupported on most CPUs, and handles one matrix at a
    time. This implementation multiplies in the dtype of the weights and batches matrices of equal shape.

    Args:
        params: Matrices, or parameter groups of them.
        lr: Learning rate: the size of the update in every direction.
        momentum: Momentum factor.
        nesterov: Use Nesterov momentum.
        weight_decay: Decoupled weight decay, multiplied by the learning rate.
        ns_steps: Number of Newton-Schulz steps of the orthogonalization; 3 are cheaper and nearly as good.

    Example:
        >>> weight = torch.nn.Parameter(torch.eye(3))
        >>> optimizer = Muon([weight], lr=0.1)
        >>> weight.grad = torch.diag(torch.tensor([1.0, 0.1, 0.01]))  # directions of very different size
        >>> optimizer.step()
        >>> [round(x, 2) for x in weight.diagonal().tolist()]  # get updates of the same size
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
        ns_steps: int = len(POLAR_EXPRESS),
    ) -> None:
        check_positive_number(lr=lr)
        check_flags(nesterov=nesterov)
        if not (is_number(momentum) and 0 <= momentum < 1):
            raise ConfigError(f"momentum={momentum!r} must be at least zero and below one")
        if not (is_number(weight_decay) and 0 <= weight_decay < math.inf):
            raise ConfigError(f"weight_decay={weight_decay!r} must be a finite number, zero or more")
        if not (is_integer(ns_steps) and ns_steps <= len(POLAR_EXPRESS)):
            raise ConfigError(f"ns_steps={ns_steps!r} must be an integer from 1 to {len(POLAR_EXPRESS)}")
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "nesterov": nesterov,
            "weight_decay": weight_decay,
            "ns_steps": ns_steps,
        }
        try:
            super().__init__(params, defaults)
        except (ValueError, TypeError, RuntimeError) as error:
            kind = ConfigError if isinstance(error, ValueError) else ArgumentTypeError
            raise kind(f"Muon takes matrices: {error}\nfix: Muon([layer.weight, ...])") from error
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.dim() != 2:
                    raise ConfigError(
                        f"Muon is for matrices, but got a parameter of shape {tuple(weight.shape)}\n"
                        f"fix: give embeddings, heads, gains and biases to AdamW"
                    )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Perform one optimizer step; returns the closure's loss, if there is a closure."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for weights in group_by_shape(group["params"]):
                self._step(weights, group)
        return loss

    @torch.no_grad()
    def step_matrices(self, weights: list[Tensor]) -> None:
        """Step only these matrices, which are of one shape and one parameter group."""
        if weights:
            self._step(weights, self._group_of(weights[0]))

    def _step(self, weights: list[Tensor], group: dict[str, Any]) -> None:
        updates = self.updates_for(weights, [need_gradient(weight) for weight in weights], group)
        apply_updates(weights, updates, [weight.shape for weight in weights], group)

    @torch.no_grad()
    def updates_for(self, weights: list[Tensor], gradients: list[Tensor], group: dict[str, Any]) -> list[Tensor]:
        """Add the gradients to the momentum, and return the orthogonalized updates, in the shapes of the weights."""
        buffers = [self._momentum_buffer(weight, gradient) for weight, gradient in zip(weights, gradients, strict=True)]
        torch._foreach_lerp_(buffers, gradients, 1 - group["momentum"])
        directions = torch._foreach_lerp(gradients, buffers, group["momentum"]) if group["nesterov"] else buffers
        return [
            update if _is_wide(weight) else update.T
            for weight, update in zip(weights, _orthogonal(directions, group["ns_steps"]), strict=True)
        ]

    @torch.no_grad()
    def updates(self) -> Iterator[Tensor]:
        """The updates for the current gradients without momentum; changes nothing."""
        for group in self.param_groups:
            for weights in group_by_shape(group["params"]):
                yield _orthogonal([need_gradient(weight) for weight in weights], group["ns_steps"])

    def _group_of(self, weight: Tensor) -> dict[str, Any]:
        return next(group for group in self.param_groups if any(weight is one for one in group["params"]))

    def _momentum_buffer(self, weight: Tensor, gradient: Tensor) -> Tensor:
        if "momentum" not in self.state[weight]:
            self.state[weight]["momentum"] = torch.zeros_like(gradient)
        buffer: Tensor = self.state[weight]["momentum"]
        return buffer


@torch.no_grad()
def apply_updates(
    weights: list[Tensor], updates: list[Tensor], shapes: list[torch.Size], group: dict[str, Any]
) -> None:
    """Decay the weights, and subtract the updates times the learning rate.

    `shapes` are those of the whole matrices, of which weights and updates may be a part.
    """
    lr, weight_decay = group["lr"], group["weight_decay"]
    if weight_decay:
        torch._foreach_mul_(weights, max(-_LARGEST, 1 - lr * weight_decay))
    for weight, update, (rows, columns) in zip(weights, updates, shapes, strict=True):
        weight.add_(update, alpha=-min(_LARGEST, lr * max(1.0, rows / columns) ** 0.5))


def need_gradient(weight: Tensor) -> Tensor:
    assert weight.grad is not None
    return weight.grad


def _orthogonal(directions: Iterable[Tensor], ns_steps: int) -> Tensor:
    """Stack matrices of equal size, transposing tall ones, and orthogonalize them: (k, n, m)."""
    return orthogonalize(torch.stack([matrix if _is_wide(matrix) else matrix.T for matrix in directions]), ns_steps)


def _is_wide(matrix: Tensor) -> bool:
    return matrix.shape[0] <= matrix.shape[1]


def group_by_shape(weights: Iterable[Tensor]) -> list[list[Tensor]]:
    """Group the weights that have a gradient by shape (up to transposition), device and dtype."""
    groups: dict[Any, list[Tensor]] = {}
    for weight in weights:
        if weight.grad is not None:
            groups.setdefault((*sorted(weight.shape), weight.device, weight.dtype), []).append(weight)
    return list(groups.values())


def orthogonalize(matrices: Tensor, ns_steps: int = len(POLAR_EXPRESS)) -> Tensor:
    """Approximate U V^T of the singular value decomposition U S V^T of each matrix (k, n, m), n <= m.

    All polynomials of X have the form P(X X^T) X, so they are multiplied in the small n x n space and X is used only
    twice: half the work of iterating on X for the 1:4 matrices of an MLP. Rounding errors of the Gram matrix affect
    only directions a thousand times smaller than the largest, which five steps do not bring to one in either form.

    >>> x = orthogonalize(torch.randn(1, 16, 64, generator=torch.Generator().manual_seed(0)))
    >>> sizes = torch.linalg.svdvals(x)
    >>> bool(0.8 < sizes.min()) and bool(sizes.max() < 1.2)
    True
    """
    norm = matrices.norm(dim=(1, 2), keepdim=True).clamp_min(torch.finfo(matrices.dtype).tiny)
    matrices = matrices / (norm * 1.02)  # all singular values below one; zeros stay zeros
    gram = matrices @ matrices.mT  # k n n
    product = None
    for i, (a, b, c) in enumerate(POLAR_EXPRESS[:ns_steps]):
        polynomial = gram.baddbmm(gram, gram, beta=b, alpha=c)
        polynomial.diagonal(dim1=1, dim2=2).add_(a)
        product = polynomial if product is None else polynomial @ product
        if i + 1 < ns_steps:
            gram = polynomial @ (polynomial @ gram)  # the Gram matrix of the next X; all of these commute
    return matrices if product is None else product @ matrices
