"""Follow losses from the call that computes them to the scalar that backward starts from."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from normscope.diagnostics.collect.tensors import version_of
from normscope.diagnostics.stats.losses import ObjectiveTerm
from normscope.tracing.function_kinds import SAME_VALUES, SELECTIONS
from normscope.tracing.tensor_table import TensorTable
from normscope.tracing.tracer import FunctionCall

_PASSING = SAME_VALUES | SELECTIONS | {"index_select", "masked_select", "nan_to_num"}
_SUMS = {"add", "sub", "rsub", "stack", "cat", "hstack", "sum"}
_NONLINEAR = {
    *("pow", "square", "abs", "sqrt", "exp", "log", "log1p", "expm1", "cosh", "where", "clamp", "clip", "clamp_min"),
    *("clamp_max", "relu", "maximum", "minimum", "max", "min", "norm", "linalg_norm", "linalg_vector_norm"),
    *("vector_norm", "softplus", "masked_fill", "logsumexp", "sigmoid", "tanh", "amax", "topk", "sort", "median"),
}

FOLLOWED = frozenset({*_PASSING, *_SUMS, *_NONLINEAR, "neg", "mul", "div", "mean"})
"""Functions that `ObjectiveTerms` needs to see."""

_MAX_TERMS = 64


@dataclass(frozen=True)
class Terms:
    """The losses that a tensor is computed from.

    Args:
        parts: the losses.
        is_complete: whether nothing else in it requires a gradient.
        batch: size of the axis of samples.
        loss_scale: factor of a GradScaler.
    """

    parts: tuple[ObjectiveTerm, ...]
    is_complete: bool = True
    batch: int = 0
    loss_scale: float = 1.0


class ObjectiveTerms:
    """The losses that live tensors are computed from."""

    def __init__(self) -> None:
        self._terms = TensorTable[Terms](version_of)

    def of(self, tensor: Tensor) -> Terms | None:
        return self._terms.get(tensor)

    def begin(self, result: Tensor, loss: int, batch: int, *, is_sum: bool = False, is_signed: bool = False) -> None:
        """A loss was computed."""
        self._terms.put(result, Terms((ObjectiveTerm(loss, 1.0, is_sum, is_signed),), batch=batch))

    def follow(self, call: FunctionCall, result: Any) -> None:
        """Take note of a function in `FOLLOWED`, called outside of submodules."""
        if not len(self._terms):
            return
        if isinstance(result, tuple) and result and isinstance(result[0], Tensor):
            for part in result:
                if isinstance(part, Tensor):
                    self.follow(call, part)
            return
        if not isinstance(result, Tensor) or not result.requires_grad or self._terms.get(result) is not None:
            return
        arguments = [*_flat(call.args), *_flat(call.kwargs.values())]
        known = {i: terms for i, a in enumerate(arguments) if isinstance(a, Tensor) and (terms := self.of(a))}
        if not known:
            return
        first = known[min(known)]
        if call.name in _SUMS and not (call.name == "sum" and isinstance(call.args[0], Tensor)):
            new = _add(call.name, arguments, known)
        elif call.name in ("mul", "div"):
            new = _scale(call.name, arguments, known)
        elif call.name == "neg":
            new = _times(first, -1.0)
        elif call.name in ("sum", "mean"):
            x = next(a for a in arguments if isinstance(a, Tensor))
            new = _reduce(first, x, result, call.name == "sum")
        elif call.name in _PASSING:
            new = first
        else:
            new = replace(first, parts=tuple(replace(part, is_signed=False) for part in first.parts))
        self._terms.put(result, replace(new, parts=new.parts[:_MAX_TERMS]))

    def clear(self) -> None:
        self._terms.clear()


def _flat(arguments: Iterable[Any]) -> list[Any]:
    found = []
    for argument in arguments:
        found += list(argument)[:_MAX_TERMS] if isinstance(argument, list | tuple) else [argument]
    return found


def _times(terms: Terms, factor: float | None) -> Terms:
    def changed(part: ObjectiveTerm) -> ObjectiveTerm:
        return replace(part, factor=None if part.factor is None or factor is None else part.factor * factor)

    return replace(terms, parts=tuple(map(changed, terms.parts)))


def _add(name: str, arguments: list[Any], known: dict[int, Terms]) -> Terms:
    parts: list[ObjectiveTerm] = []
    for i, terms in known.items():
        minus = (name == "sub" and i == 1) or (name == "rsub" and i == 0)
        parts += _times(terms, -1.0).parts if minus else terms.parts
    others = [a for i, a in enumerate(arguments) if isinstance(a, Tensor) and a.requires_grad and i not in known]
    first = known[min(known)]
    return Terms(tuple(parts), not others and all(t.is_complete for t in known.values()), first.batch, first.loss_scale)


def _scale(name: str, arguments: list[Any], known: dict[int, Terms]) -> Terms:
    first = known[min(known)]
    if len(arguments) < 2 or (name == "div" and 0 not in known):
        return replace(_times(first, None), is_complete=False)
    other = arguments[1 - min(known)] if min(known) < 2 else None
    if arguments[0] is arguments[1]:
        return replace(first, parts=tuple(replace(part, is_signed=False) for part in first.parts))
    if isinstance(other, Tensor):
        if other.requires_grad:
            return replace(_times(first, None), is_complete=False)
        if other.numel() > 1:
            if bool(((other == 0) | (other == 1)).all()):  # a mask
                return first
            weighted = first if bool((other >= 0).all()) else _times(first, None)
            return replace(weighted, parts=tuple(replace(part, is_weighted=True) for part in weighted.parts))
        number = float(other) if other.numel() else math.nan
        if name == "mul" and not other.dim() and number >= 2 and math.frexp(number)[0] == 0.5:
            return replace(first, loss_scale=first.loss_scale * number)
    elif isinstance(other, int | float):
        number = float(other)
    else:
        return _times(first, None)
    return _times(first, number if name == "mul" else 1 / number if number else None)


def _reduce(terms: Terms, x: Tensor, result: Tensor, is_sum: bool) -> Terms:
    """A sum or mean: it is one over samples if their axis is gone."""
    if not x.dim() or (result.dim() and result.shape[0] == x.shape[0] and x.shape[0] > 1):
        return terms
    batch = max(terms.batch, x.shape[0])
    return replace(terms, batch=batch, parts=tuple(replace(p, is_sum=p.is_sum or is_sum) for p in terms.parts))
