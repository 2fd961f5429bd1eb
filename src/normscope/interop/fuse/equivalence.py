"""Compare two modules: outputs, gradients and running statistics, in train and eval mode."""

import warnings
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from normscope.interop.fuse.module_copies import random_input

TOLERANCE_ULPS = {torch.float32: 32, torch.bfloat16: 8, torch.float16: 8}
"""Tolerance in ulps of the dtype at the largest value.

Measured on norms of torch and transformers with 3 to 4096 features: up to 10 ulps in float32 and up to 4 in half
precision. With one or two features, cancellation can exceed it, and the norm is skipped. The smallest plausible
difference in the math, a variance divided by d - 1 instead of d, is 400 ulps of float32 even for 10,000 features.
"""


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


def call_forward(module: nn.Module, x: Tensor) -> Tensor:
    """Call `forward` directly, without hooks and warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        y = module.forward(x)
    if not isinstance(y, Tensor):
        raise TypeError(f"forward returned {type(y).__name__}, not a tensor")
    return y


def _first_difference(x: Tensor, old: dict[str, Tensor], new: dict[str, Tensor]) -> str | None:
    if old.keys() != new.keys():
        return f"{' and '.join(sorted(old.keys() ^ new.keys()))} exists on one side only"
    for name, wanted in old.items():
        found = new[name]
        if found.dtype != wanted.dtype or found.shape != wanted.shape:
            return f"{name} differs in dtype or shape"
        # The input gradient is a sum of terms as large as y / x, which may cancel almost completely.
        terms = _largest(old["output"]) / max(_largest(x), 1e-30) if name == _INPUT else 0.0
        if not allclose(found, wanted, terms):
            return f"{name} differs"
    return None


def allclose(found: Tensor, wanted: Tensor, size: float = 0.0) -> bool:
    """Whether two tensors agree to `TOLERANCE_ULPS` at the largest value, or at `size`; NaN equals NaN."""
    roundings = TOLERANCE_ULPS.get(wanted.dtype)
    if roundings is None:
        return torch.equal(found, wanted)
    spacing = torch.finfo(wanted.dtype).eps
    allowed = roundings * spacing * max(_largest(wanted), size)
    return bool(torch.isclose(found.double(), wanted.double(), rtol=0.0, atol=allowed, equal_nan=True).all())


def _largest(values: Tensor) -> float:
    finite = values[values.isfinite()].abs()
    return float(finite.max()) if finite.numel() else 0.0
