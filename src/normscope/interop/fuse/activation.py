"""Recognize activations of other libraries, by what they compute."""

import torch
from torch import Tensor, nn

from normscope.ops.activations import REFERENCE_ACTIVATIONS
from normscope.tracing.module_trials import allclose, call_forward, random_input, randomized_copy

_NAMES = ("gelu-tanh", "silu", "relu2")


def recognize_activation(module: nn.Module) -> str | None:
    """Return the name of the activation that a module without parameters computes; None if it has no fused version."""
    copy, inputs = randomized_copy(module), activation_inputs(torch.float32)
    with torch.no_grad():
        results = [call_forward(copy, x.clone()) for x in inputs]
        for name in _NAMES:
            wanted = [REFERENCE_ACTIVATIONS[name](x.double()).float() for x in inputs]
            if all(y.shape == w.shape and allclose(y, w) for y, w in zip(results, wanted, strict=True)):
                return name
    return None


def activation_inputs(dtype: torch.dtype) -> list[Tensor]:
    """Inputs in the curved range, the asymptotic range and close to zero; in float32 also where it may be capped."""
    shapes = (40, 16), (2, 3, 16), (2, 3, 2, 16)
    scales = (1.0, 20.0, 1e-2, *((1e4,) if dtype == torch.float32 else ()))
    return [random_input(shape, scale, dtype, seed=60) for shape in shapes for scale in scales]
