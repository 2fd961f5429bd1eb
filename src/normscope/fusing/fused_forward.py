"""Fused subclasses of norms and activations of other libraries, created at run time."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normscope.ops import kernel_mode
from normscope.ops.activations import activate
from normscope.ops.norm import normalize as norm
from normscope.ops.norm.reference import Affine
from normscope.ops.norm.statistic import Statistic
from normscope.scope import Scope
from normscope.tracing.module_trials import own_attributes
from normscope.tracing.norm_formula import NormFormula

FORMULA_ATTRIBUTE = "_normscope_form"
"""Attribute of a fused module with its `FusedFormula`; None once an attribute change invalidates it."""

RANKS = (2, 3, 4)
"""Input ranks on which a formula is recognized and verified."""

# Parsed once: torch.compile cannot trace the parser.
_LAST_AXIS, _ITS_GAIN = Scope.parse("... [d]"), ("d",)


@dataclass(frozen=True)
class FusedFormula:
    """What a fused module computes: the formula of a norm, or the name of an activation.

    Args:
        formula: the norm or activation.
        dtypes: the dtypes in which equivalence was verified.
    """

    formula: NormFormula | str
    dtypes: frozenset[torch.dtype]


class FusedForward(nn.Module):
    """Mixin with a fused `forward`.

    Falls back to the original `forward` for anything not verified: other dtypes, ranks, arguments or devices.
    """

    _normscope_kind: type[nn.Module]

    def forward(self, *inputs: Any, **named: Any) -> Any:
        fused: FusedFormula | None = getattr(self, FORMULA_ATTRIBUTE)
        if fused is None or named or len(inputs) != 1:
            return super().forward(*inputs, **named)
        x, formula = inputs[0], fused.formula
        if not isinstance(x, Tensor) or x.dtype not in fused.dtypes or x.dim() not in RANKS or not x.is_contiguous():
            return super().forward(x)
        if isinstance(formula, str):
            return super().forward(x) if kernel_mode.select_backend(x) == "reference" else activate(formula, x)
        weight, bias = self._parameters.get(formula.gain or ""), self._parameters.get(formula.bias or "")
        return _normalize(formula, self, x, weight, bias) if _fits(formula, x, weight, bias) else super().forward(x)

    def __setattr__(self, name: str, value: Any) -> None:
        # Equivalence was verified for the old attributes; with others, use the original forward.
        if name in own_attributes(self) and name != FORMULA_ATTRIBUTE and vars(self)[name] is not value:
            vars(self)[FORMULA_ATTRIBUTE] = None
        super().__setattr__(name, value)

    def __reduce_ex__(self, protocol: Any) -> Any:
        # The class was created at run time and cannot be pickled by name, but the original class can.
        return _empty, (self._normscope_kind,), self.__getstate__()  # type: ignore[no-untyped-call]


def _fits(formula: NormFormula, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> bool:
    if (weight is None) != (formula.gain is None) or (bias is None) != (formula.bias is None):
        return False  # a parameter was removed or replaced
    for parameter in (weight, bias):
        if parameter is not None and (parameter.dtype != x.dtype or parameter.shape != x.shape[-1:]):
            return False
    if formula.width is not None and x.shape[-1] != formula.width:
        return False
    return x.numel() > 0 and kernel_mode.select_backend(x, weight, bias) != "reference"


def _normalize(
    formula: NormFormula, module: nn.Module, x: Tensor, weight: Tensor | None, bias: Tensor | None
) -> Tensor:
    if weight is not None and formula.offset != 0:
        weight = weight.float() + formula.offset  # in float32, to keep the digits of a weight near zero
    eps = formula.eps if formula.eps_name is None else getattr(module, formula.eps_name)
    plan = _LAST_AXIS.bind(x.shape)
    affine = Affine(weight, bias, plan.broadcast_shape(_ITS_GAIN))
    return norm.normalize(x, plan, statistic=Statistic.named(formula.statistic), eps=eps, affine=affine, mask=None)


_classes: dict[type[nn.Module], type[nn.Module]] = {}


def fused_class(kind: type[nn.Module]) -> type[nn.Module]:
    """Return the fused subclass of a class, so that isinstance checks and attributes keep working.

    Its name contains the original one: libraries look at class names to initialize weights.
    """
    if kind not in _classes:
        members = {"__module__": __name__, "__doc__": f"{kind.__name__} with a fused forward.", "_normscope_kind": kind}
        _classes[kind] = type(f"Fused{kind.__name__}", (FusedForward, kind), members)
    return _classes[kind]


def _empty(kind: type[nn.Module]) -> nn.Module:
    """An instance of the fused class without state, for unpickling."""
    made = fused_class(kind)
    empty: nn.Module = made.__new__(made)
    return empty
