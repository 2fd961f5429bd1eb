"""Where the values of a tensor come from: the function that bounds them, the module that returned them."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from normscope.diagnostics.collect.tensors import is_measurable, version_of
from normscope.tracing.function_kinds import SAME_VALUES, SELECTIONS
from normscope.tracing.tensor_table import TensorTable
from normscope.tracing.tracer import FunctionCall

_INF = math.inf

BOUNDS: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("sigmoid", "softmax", "hardsigmoid", "softmin", "gumbel_softmax"), (0.0, 1.0)),
    **dict.fromkeys(("tanh", "hardtanh", "softsign", "cosine_similarity", "normalize"), (-1.0, 1.0)),
    **dict.fromkeys(("relu", "softplus", "exp", "abs", "square"), (0.0, _INF)),
    **dict.fromkeys(("log_softmax", "logsigmoid"), (-_INF, 0.0)),
    "relu6": (0.0, 6.0),
    "elu": (-1.0, _INF),
    "silu": (-0.2785, _INF),
    "gelu": (-0.17, _INF),
    "mish": (-0.3088, _INF),
}
"""Least and largest values that a function can return, with its default arguments."""

_MONOTONE: dict[str, Callable[[float], float]] = {
    "sigmoid": lambda x: 0.5 + 0.5 * math.tanh(x / 2),
    "tanh": math.tanh,
    "relu": lambda x: max(x, 0.0),
}
"""Functions whose bounds follow from those of their input."""

SOFTMAXES = {"softmax", "log_softmax", "softmin", "gumbel_softmax"}
PROBABILITY_FUNCTIONS = {"softmax", "log_softmax", "sigmoid"}
"""Functions that cross-entropy applies itself. Applying them before is a common mistake."""

_PASSING = SAME_VALUES | SELECTIONS | {"index_select", "masked_select", "gather", "take_along_dim", "dropout"}
"""Functions that return all or some values of their input."""

_AFFINE = {"mul", "div", "add", "sub", "rsub", "neg"}
_CLAMPS = {"clamp", "clip", "clamp_min", "clamp_max"}
_NORMS = {"norm", "linalg_norm", "linalg_vector_norm", "vector_norm"}
_PRODUCTS = {"matmul", "mm", "bmm", "linear", "addmm", "einsum"}
_KEEPING_COSINES = {
    "cos",
    "acos",
    "arccos",
    "where",
    "scatter",
    "masked_fill",
    "index_put",
    "cat",
    "stack",
    "sqrt",
    "pow",
}

_UNIT_MARGIN = 0.02
"""Norms of unit vectors in bfloat16, whose values are rounded by up to 2^-8 each."""

FOLLOWED = frozenset(
    {*BOUNDS, *_PASSING, *_AFFINE, *_CLAMPS, *_NORMS, *_PRODUCTS, *_KEEPING_COSINES, "logsumexp", "embedding"}
)
"""Functions that `ValueOrigins` needs to see."""


@dataclass(frozen=True)
class Origin:
    """Where the values of a tensor come from.

    Args:
        function: the last function that computed them, if it is one with bounds.
        module: the innermost module that called it, or that returned the tensor; None if none did.
        low, high: bounds of the values.
        is_scaled: whether they were multiplied or shifted after the function.
        size: for a softmax, the size of its axis.
        over_batch: for a softmax, whether its axis is the first of several.
        before: origin of the function's input.
        has_cosines: whether they are computed from cosines, such as those of normalized features and weights.
        flattened: shape of the tensor with three axes whose first two were flattened to one.
    """

    function: str | None
    module: str | None
    low: float = -_INF
    high: float = _INF
    is_scaled: bool = False
    size: int | None = None
    over_batch: bool = False
    before: "Origin | None" = None
    has_cosines: bool = False
    flattened: tuple[int, ...] = ()

    def affine(self, factor: float, shift: float) -> "Origin":
        """The origin after `factor * x + shift`."""
        ends = [factor * end + shift if factor else shift for end in (self.low, self.high)]
        return replace(self, low=min(ends), high=max(ends), is_scaled=self.is_scaled or (factor, shift) != (1.0, 0.0))


class ValueOrigins:
    """Origins of live tensors. A tensor that was changed in place is forgotten."""

    def __init__(self) -> None:
        self._origins = TensorTable[Origin](version_of)
        # "norm" or "logsumexp" of a tensor, "unit" for tensors divided by it, "scaled" for units times a number
        self._unit = TensorTable[str](version_of)

    def of(self, tensor: object) -> Origin | None:
        return self._origins.get(tensor) if isinstance(tensor, Tensor) else None

    def return_from(self, module: str, tensor: Tensor) -> None:
        """A module returned a tensor. If a function or a module inside made it, that one counts."""
        if self._origins.get(tensor) is None:
            self._origins.put(tensor, Origin(None, module))

    def follow(self, call: FunctionCall, result: Any) -> None:
        """Take note of the result of a function in `FOLLOWED`."""
        if not isinstance(result, Tensor) or not result.is_floating_point():
            return
        name, x = call.name, call.args[0] if call.args else call.kwargs.get("input")
        if name == "normalize":
            self._unit.put(result, "unit")
        if name in BOUNDS:
            self._put_bounded(call, x, result)
        elif name in _PASSING:
            self._pass_on(x, result)
        elif name in _NORMS:
            self._unit.put(result, "norm")
        elif name == "logsumexp":
            self._unit.put(result, "logsumexp")
        elif name in _CLAMPS:
            self._clamp(call, x, result)
        elif name in _PRODUCTS:
            factors = [a for a in call.args if isinstance(a, Tensor)][-2:]
            if len(self._unit) and self._are_unit(factors):
                self._origins.put(result, Origin("cosine_similarity", _module(call), -1.0, 1.0, has_cosines=True))
            elif len(self._unit) and all(self._unit.get(factor) in ("unit", "scaled") for factor in factors):
                self._origins.put(result, Origin(None, _module(call), has_cosines=True))
        elif name in _AFFINE:
            self._affine(call, result)
        if name in _KEEPING_COSINES:
            self._keep_cosines(call, result)

    def _are_unit(self, factors: list[Tensor]) -> bool:
        """Whether a product is one of unit vectors. The second factor may have been normalized earlier."""
        known = [self._unit.get(factor) == "unit" for factor in factors]
        others = [factor.detach().float() for factor, is_unit in zip(factors, known, strict=True) if not is_unit]
        if not any(known) or len(factors) < 2:
            return False
        norms = (other.norm(dim=axis) for other in others if other.dim() > 1 for axis in (-1, -2))
        return not others or any(bool(((norm - 1).abs() < _UNIT_MARGIN).all()) for norm in norms)

    def _put_bounded(self, call: FunctionCall, x: Any, result: Tensor) -> None:
        low, high = BOUNDS[call.name]
        if call.name == "hardtanh":
            limits = [a for a in (*call.args[1:], *call.kwargs.values()) if type(a) in (int, float)]
            low, high = (float(limits[0]), float(limits[1])) if len(limits) == 2 else (low, high)
        size, over_batch = None, False
        if call.name in SOFTMAXES:
            axis = call.args[1] if len(call.args) > 1 else call.kwargs.get("dim")
            if type(axis) is int and result.dim():
                size, over_batch = result.shape[axis], axis % result.dim() == 0 and result.dim() > 1
        cosines = call.name == "cosine_similarity"
        if call.name in ("relu", "abs", "square", "exp") and (before := self.of(x)) is not None:
            cosines = before.has_cosines
        given = self.of(x)
        if given is not None and call.name in _MONOTONE:
            low, high = (_MONOTONE[call.name](end) for end in (given.low, given.high))
        flattened = () if given is None else given.flattened
        origin = Origin(call.name, _module(call), low, high, False, size, over_batch, given, cosines, flattened)
        if origin.before is not None and origin.before.before is not None:  # one step back is enough
            origin = replace(origin, before=replace(origin.before, before=None))
        self._origins.put(result, origin)

    def _pass_on(self, x: Any, result: Tensor) -> None:
        if not isinstance(x, Tensor) or result is x:
            return
        if (origin := self.of(x)) is not None:
            if (
                x.dim() == 3
                and result.dim() == 2
                and x.shape[-1] == result.shape[-1]
                and len(x) * x.shape[1] == len(result)
            ):
                origin = replace(origin, flattened=tuple(x.shape))
            self._origins.put(result, origin)
        if len(self._unit) and (unit := self._unit.get(x)) is not None:
            self._unit.put(result, unit)

    def _clamp(self, call: FunctionCall, x: Any, result: Tensor) -> None:
        named = dict(zip(("input", "min", "max"), call.args, strict=False)) | call.kwargs
        if call.name == "clamp_max":
            named = {"max": named.get("min", named.get("max"))}
        low, high = (float(v) if isinstance(v, int | float) else None for v in (named.get("min"), named.get("max")))
        origin = self.of(x) or Origin("clamp", _module(call))
        low, high = (-_INF if low is None else low), (_INF if high is None else high)
        if origin.function is None:
            origin = Origin("clamp", _module(call), before=origin, has_cosines=origin.has_cosines)
        self._origins.put(result, replace(origin, low=max(origin.low, low), high=min(origin.high, high)))
        if isinstance(x, Tensor) and (unit := self._unit.get(x)) is not None:
            self._unit.put(result, unit)

    def _affine(self, call: FunctionCall, result: Tensor) -> None:
        name, args = call.name, call.args
        x = next((a for a in args if isinstance(a, Tensor) and self.of(a) is not None), None)
        if name == "div" and len(args) > 1 and isinstance(args[1], Tensor) and self._unit.get(args[1]) == "norm":
            self._unit.put(result, "unit")
        if name in ("mul", "div") and len(self._unit):
            units = [isinstance(a, Tensor) and self._unit.get(a) in ("unit", "scaled") for a in args[:2]]
            if sum(units) == 1 and all(
                is_unit or not isinstance(a, Tensor) or a.numel() == 1 for a, is_unit in zip(args, units, strict=False)
            ):
                self._unit.put(result, "scaled")
        if name == "sub" and len(args) > 1 and isinstance(args[1], Tensor) and self._unit.get(args[1]) == "logsumexp":
            before = self.of(args[0])
            self._origins.put(result, Origin("log_softmax", _module(call), -_INF, 0.0, before=before))
            return
        if x is None or result is x:
            return
        origin = self.of(x)
        assert origin is not None
        others = [a for a in args[:2] if a is not x]
        other = others[0] if others else None
        if name == "neg":
            self._origins.put(result, origin.affine(-1.0, 0.0))
        elif isinstance(other, int | float) and (name != "div" or (args[0] is x and other)):
            number = float(other)
            factor, shift = {
                "mul": (number, 0.0),
                "div": (1 / number if number else 1.0, 0.0),
                "add": (1.0, number),
                "sub": (1.0, -number) if args[0] is x else (-1.0, number),
                "rsub": (-1.0, number),
            }[name]
            if origin.function is not None and (math.isfinite(origin.low) or math.isfinite(origin.high)):
                self._origins.put(result, origin.affine(factor, shift))
            elif origin.has_cosines:
                self._origins.put(result, Origin(None, origin.module, has_cosines=True))
        else:
            self._keep_cosines(call, result)

    def _keep_cosines(self, call: FunctionCall, result: Tensor) -> None:
        arguments = [*call.args, *call.kwargs.values()]
        tensors = [a for a in arguments if isinstance(a, Tensor)]
        for part in arguments:
            if isinstance(part, list | tuple):
                tensors += [a for a in part if isinstance(a, Tensor)]
        origins = [self.of(tensor) for tensor in tensors if tensor is not result]
        if any(origin is not None and origin.has_cosines for origin in origins) and self.of(result) is None:
            self._origins.put(result, Origin(None, _module(call), has_cosines=True))

    def clear(self) -> None:
        self._origins.clear()
        self._unit.clear()


def _module(call: FunctionCall) -> str | None:
    return call.frames[-1].accumulator.name if call.frames else None


def rows_of(values: Tensor, axis: int) -> Tensor:
    """At most 256 rows along an axis, as a matrix in float32."""
    rows = values.detach().movedim(axis, -1).reshape(-1, values.shape[axis])
    return rows[:: max(1, -(-len(rows) // 256))].float()


def is_plain(tensor: object) -> bool:
    """Whether the values of a floating-point tensor can be read and there are some."""
    return is_measurable(tensor) and tensor.numel() > 0
