"""Fused subclass for a norm of another library."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from normscope.interop.fuse.fused_class import FORMULA_ATTRIBUTE, RANKS, FusedModuleBase
from normscope.ops import dispatch, kernel_mode
from normscope.ops.norm_reference import Affine
from normscope.ops.statistic import Statistic, StatisticName
from normscope.scope import Scope

# Parsed once: torch.compile cannot trace the parser.
_LAST_AXIS, _ITS_GAIN = Scope.parse("... [d]"), ("d",)


@dataclass(frozen=True)
class RowNormFormula:
    """The formula of a norm over the last axis, and the attributes that hold its parameters.

    y = x / sqrt(mean of squares + eps) * (gain + offset) + bias, and the same after centering for "standardize".
    """

    statistic: StatisticName
    gain: str | None = None
    """Name of the weight parameter."""
    bias: str | None = None
    offset: float = 0.0
    eps: float = 0.0
    eps_name: str | None = None
    """Attribute with eps, read at every call; None if eps is hard-coded."""
    width: int | None = None
    """Length of the last axis; None for any."""
    kinds: frozenset[torch.dtype] = frozenset()
    """The dtypes in which equivalence was verified."""

    def __str__(self) -> str:
        gain = "" if self.gain is None else f", {self.gain}{f' + {self.offset:g}' * (self.offset != 0)}"
        return f"{self.statistic}{gain}{'' if self.bias is None else f', {self.bias}'}, eps={self.eps:.6g}"


class FusedRowNorm(FusedModuleBase):
    """Mixin with a fused `forward`.

    Falls back to the original `forward` for anything not verified: other dtypes, ranks, arguments or devices.
    """

    def forward(self, *inputs: Any, **named: Any) -> Any:
        form: RowNormFormula | None = getattr(self, FORMULA_ATTRIBUTE)
        if form is None or named or len(inputs) != 1:
            return super().forward(*inputs, **named)
        x, weight, bias = inputs[0], self._parameters.get(form.gain or ""), self._parameters.get(form.bias or "")
        if not _is_verified(form, x, weight, bias):
            return super().forward(x)
        gain: Tensor | None = weight
        if weight is not None and form.offset != 0:
            gain = weight.float() + form.offset  # in float32, to keep the digits of a weight near zero
        eps = form.eps if form.eps_name is None else getattr(self, form.eps_name)
        plan = _LAST_AXIS.bind(x.shape)
        affine = Affine(gain, bias, plan.broadcast_shape(_ITS_GAIN))
        return dispatch.normalize(x, plan, statistic=Statistic.named(form.statistic), eps=eps, affine=affine, mask=None)


def _is_verified(form: RowNormFormula, x: Any, weight: Tensor | None, bias: Tensor | None) -> bool:
    if not isinstance(x, Tensor) or x.dtype not in form.kinds or x.dim() not in RANKS or not x.is_contiguous():
        return False
    if (weight is None) != (form.gain is None) or (bias is None) != (form.bias is None):
        return False  # a parameter was removed or replaced
    for parameter in (weight, bias):
        if parameter is not None and (parameter.dtype != x.dtype or parameter.shape != x.shape[-1:]):
            return False
    if form.width is not None and x.shape[-1] != form.width:
        return False
    return x.numel() > 0 and kernel_mode.select_backend(x, weight, bias) != "reference"
