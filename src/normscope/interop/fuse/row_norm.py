"""What a norm of another library becomes: a subclass of its own class, with a fused `forward`."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from normscope.interop.fuse.fused_class import FORMULA_ATTRIBUTE, RANKS, FusedModuleBase
from normscope.ops import dispatch, kernel_mode
from normscope.ops.norm_reference import Affine
from normscope.ops.statistic import Statistic, StatisticName
from normscope.scope import Scope

# Read once: torch.compile cannot follow the reading of text.
_LAST_AXIS, _ITS_GAIN = Scope.parse("... [d]"), ("d",)


@dataclass(frozen=True)
class RowNormFormula:
    """A norm over the last axis, and where the module keeps what it needs.

    y = x / sqrt(mean of squares + eps) * (gain + offset) + bias, and the same after centring for "standardize".
    """

    statistic: StatisticName
    gain: str | None = None
    """The parameter's name."""
    bias: str | None = None
    offset: float = 0.0
    eps: float = 0.0
    eps_name: str | None = None
    """The attribute with eps, which is read at every call; None if eps stands in the module's code."""
    width: int | None = None
    """The length of the last axis; None if the module takes any."""
    kinds: frozenset[torch.dtype] = frozenset()
    """The types in which it was proven to be the same."""

    def __str__(self) -> str:
        gain = "" if self.gain is None else f", {self.gain}{f' + {self.offset:g}' * (self.offset != 0)}"
        return f"{self.statistic}{gain}{'' if self.bias is None else f', {self.bias}'}, eps={self.eps:.6g}"


class FusedRowNorm(FusedModuleBase):
    """The fused `forward`, put in front of the class that it replaces.

    Whatever was not proven (another type or rank, more arguments, another device) goes to the class's own `forward`.
    """

    def forward(self, *inputs: Any, **named: Any) -> Any:
        form: RowNormFormula | None = getattr(self, FORMULA_ATTRIBUTE)
        if form is None or named or len(inputs) != 1:
            return super().forward(*inputs, **named)
        x, weight, bias = inputs[0], self._parameters.get(form.gain or ""), self._parameters.get(form.bias or "")
        if not _as_proven(form, x, weight, bias):
            return super().forward(x)
        gain: Tensor | None = weight
        if weight is not None and form.offset != 0:
            gain = weight.float() + form.offset  # in float32, where a gain near zero keeps its digits
        eps = form.eps if form.eps_name is None else getattr(self, form.eps_name)
        plan = _LAST_AXIS.bind(x.shape)
        affine = Affine(gain, bias, plan.broadcast_shape(_ITS_GAIN))
        return dispatch.normalize(x, plan, statistic=Statistic.named(form.statistic), eps=eps, affine=affine, mask=None)


def _as_proven(form: RowNormFormula, x: Any, weight: Tensor | None, bias: Tensor | None) -> bool:
    if not isinstance(x, Tensor) or x.dtype not in form.kinds or x.dim() not in RANKS or not x.is_contiguous():
        return False
    if (weight is None) != (form.gain is None) or (bias is None) != (form.bias is None):
        return False  # someone has taken a parameter away, or put another thing in its place
    for parameter in (weight, bias):
        if parameter is not None and (parameter.dtype != x.dtype or parameter.shape != x.shape[-1:]):
            return False
    if form.width is not None and x.shape[-1] != form.width:
        return False
    return x.numel() > 0 and kernel_mode.select_backend(x, weight, bias) != "reference"
