"""Recognize and fuse activations of other libraries, by what they compute."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normscope.interop.fuse.equivalence import allclose, call_forward
from normscope.interop.fuse.fused_class import FORMULA_ATTRIBUTE, RANKS, FusedModuleBase
from normscope.interop.fuse.module_copies import random_input, randomized_copy
from normscope.ops import kernel_mode
from normscope.ops.activations import REFERENCE_ACTIVATIONS, activate

NAMES = ("gelu-tanh", "silu", "relu2")


@dataclass(frozen=True)
class ActivationFormula:
    name: str
    kinds: frozenset[torch.dtype] = frozenset()
    """The dtypes in which equivalence was verified."""


class FusedActivation(FusedModuleBase):
    """Fused `forward` of an activation with one input."""

    def forward(self, *inputs: Any, **named: Any) -> Any:
        form: ActivationFormula | None = getattr(self, FORMULA_ATTRIBUTE)
        if form is None or named or len(inputs) != 1:
            return super().forward(*inputs, **named)
        x = inputs[0]
        if not isinstance(x, Tensor) or x.dtype not in form.kinds or x.dim() not in RANKS or not x.is_contiguous():
            return super().forward(x)
        if kernel_mode.select_backend(x) == "reference":
            return super().forward(x)
        return activate(form.name, x)


def recognize_activation(module: nn.Module) -> ActivationFormula | None:
    """Recognize the activation that a module without parameters computes; None if it has no fused version."""
    copy, inputs = randomized_copy(module), activation_inputs(torch.float32)
    with torch.no_grad():
        results = [call_forward(copy, x.clone()) for x in inputs]
        for name in NAMES:
            wanted = [REFERENCE_ACTIVATIONS[name](x.double()).float() for x in inputs]
            if all(y.shape == w.shape and allclose(y, w) for y, w in zip(results, wanted, strict=True)):
                return ActivationFormula(name)
    return None


def activation_inputs(dtype: torch.dtype) -> list[Tensor]:
    """Inputs in the curved range, the asymptotic range and close to zero; in float32 also where it may be capped."""
    shapes = (40, 16), (2, 3, 16), (2, 3, 2, 16)
    scales = (1.0, 20.0, 1e-2, *((1e4,) if dtype == torch.float32 else ()))
    return [random_input(shape, scale, dtype, seed=60) for shape in shapes for scale in scales]
