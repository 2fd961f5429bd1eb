"""Compare two modules: outputs, gradients and running statistics, in train and eval mode."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from normscope.tracing.module_trials import allclose, call_forward, largest, random_input

_INPUT = "input gradient"


def first_difference(old: nn.Module, new: nn.Module, inputs: Iterable[Tensor]) -> str | None:
    """Return the first difference between two modules with the same parameters; None if there is none.

    Both run on the same batches in sequence, so running statistics are compared too.
    """
    for training in (True, False):
        for x in inputs:
            old.train(training)
            new.train(training)
            found = _first_difference(x, *(run_and_collect(module, x) for module in (old, new)))
            if found is not None:
                return f"{found} for an input of shape {tuple(x.shape)} in {'training' if training else 'eval'} mode"
    return None


def run_and_collect(module: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Run a module; return its output, gradients and buffers by name."""
    leaf = x.detach().clone().requires_grad_()
    y = call_forward(module, leaf)
    seen = {"output": y.detach()}
    leaves = {_INPUT: leaf}
    leaves |= {f"gradient of {name}": parameter for name, parameter in module.named_parameters()}
    if y.requires_grad:
        direction = random_input(tuple(y.shape), 1.0, y.dtype, seed=1)
        found = torch.autograd.grad(y, list(leaves.values()), direction, allow_unused=True)
        seen |= {name: g for name, g in zip(leaves, found, strict=True) if g is not None}
    return seen | {name: buffer.clone() for name, buffer in module.named_buffers()}


def _first_difference(x: Tensor, old: dict[str, Tensor], new: dict[str, Tensor]) -> str | None:
    if old.keys() != new.keys():
        return f"{' and '.join(sorted(old.keys() ^ new.keys()))} exists on one side only"
    for name, wanted in old.items():
        found = new[name]
        if found.dtype != wanted.dtype or found.shape != wanted.shape:
            return f"{name} differs in dtype or shape"
        # The input gradient is a sum of terms as large as y / x, which may cancel almost completely.
        terms = largest(old["output"]) / max(largest(x), 1e-30) if name == _INPUT else 0.0
        if not allclose(found, wanted, terms):
            return f"{name} differs"
    return None
