"""Detect the formula of a norm over the last axis by running it on probe inputs."""

import contextlib
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from normscope.checks import is_number
from normscope.ops.norm.statistic import StatisticName
from normscope.tracing.function_kinds import CLAMPS
from normscope.tracing.module_trials import (
    TOLERANCE_ULPS,
    allclose,
    call_forward,
    own_attributes,
    random_input,
    randomized_copy,
)
from normscope.tracing.nested_tensors import tensors_in
from normscope.tracing.tracer import FunctionCall, TraceObserver, Tracer

_ENORMOUS, _HUGE, _LARGE, _TINY = 1e30, 1e7, 1e3, 1e-8
_WIDTHS = (16, 24)  # for modules without parameters, whose input width is unknown


class NotANormError(Exception):
    """The module is not scale-invariant, so it is not a norm."""


class UnknownNormError(Exception):
    """The module resembles a norm, but matches no known formula."""


@dataclass(frozen=True)
class NormFormula:
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

    def __str__(self) -> str:
        gain = "" if self.gain is None else f", {self.gain}{f' + {self.offset:g}' * (self.offset != 0)}"
        return f"{self.statistic}{gain}{'' if self.bias is None else f', {self.bias}'}, eps={self.eps:.6g}"


def probe_formula(module: nn.Module) -> NormFormula:
    """Recognize the formula of a module without submodules and buffers, with at most a weight and a bias.

    large inputs    eps is negligible: determine the statistic and the role of the parameters
    tiny inputs     eps dominates: measure it
    all scales      compare the formula with the module; an eps in another place shows here
    large weights   a clamp of the output shows here
    """
    sizes = {parameter.numel() for parameter in module._parameters.values() if parameter is not None}
    if sizes:
        return _formula_of_width(module, sizes.pop())
    try:
        one, other = (replace(_formula_of_width(module, width), width=None) for width in _WIDTHS)
        if one == other:
            return one
    except (NotANormError, UnknownNormError):
        raise
    except Exception as error:  # it may accept only the width in its attributes
        for width in _whole_numbers(module):
            return _formula_of_width(module, width)
        raise error from None
    raise UnknownNormError("its formula depends on the input width")


def _whole_numbers(module: nn.Module) -> Iterator[int]:
    for value in own_attributes(module).values():
        for size in value if isinstance(value, list | tuple) else [value]:
            if isinstance(size, int) and not isinstance(size, bool) and size > 1:
                yield size


def _formula_of_width(module: nn.Module, width: int) -> NormFormula:
    copied = randomized_copy(module)
    before = _state(copied)
    large = [random_input(shape, _LARGE, torch.float32, seed=2) for shape in _shapes(width)]
    results = [_result(copied, x) for x in large]
    form = replace(_structure(copied, large, results), width=width)
    eps, name = _eps(module, form, width)
    form = replace(form, eps=eps, eps_name=name)
    for x in probe_inputs(form.eps, width):
        if not allclose(_result(copied, x), _formula(x, form, copied)):
            what = f"it is {form.statistic} for large inputs, but not for small ones"
            raise UnknownNormError(f"{what}: its guard against division by zero is not an eps inside the square root")
    broken = torch.where(torch.arange(width) == 1, torch.nan, random_input((2, width), 1.0, torch.float32, seed=31))
    if not allclose(_result(copied, broken), _formula(broken, form, copied)):
        raise UnknownNormError("it replaces NaN by other values")
    if _is_clamped(module, form, width):
        raise UnknownNormError("it clamps its values")
    if _state(copied) != before:
        raise UnknownNormError("calling it changes its state")
    return form


class _ClampObserver(TraceObserver):
    """Notice functions that may limit the values of a tensor as large as the input; a limited variance is fine."""

    def __init__(self, size: int) -> None:
        self.size, self.found = size, False

    def call_function(self, call: FunctionCall) -> Any:
        result = call.run()
        is_large = any(tensor.numel() >= self.size for tensor in tensors_in(result))
        self.found = self.found or (call.name in CLAMPS and is_large)
        return result


def _is_clamped(module: nn.Module, form: NormFormula, width: int) -> bool:
    """Whether an input or output is clamped, at any value: as its functions tell, or with weights that make it large.

    Without a weight, an output is at most the square root of the width, and only the functions tell.
    """
    for dtype in TOLERANCE_ULPS:  # a clamp may be for half precision alone
        observer = _ClampObserver(5 * width)
        copied, x = randomized_copy(module, dtype), random_input((5, width), 1.0, dtype, seed=32)
        with contextlib.suppress(Exception), torch.no_grad(), Tracer(copied, observer) as tracer:
            tracer.watch_functions()
            call_forward(copied, x)
        if observer.found:
            return True
    enlarged, x = randomized_copy(module, gain=_ENORMOUS), random_input((5, width), 1.0, torch.float32, seed=32)
    return not allclose(_result(enlarged, x), _formula(x, form, enlarged))


def _shapes(width: int) -> tuple[tuple[int, ...], ...]:
    return (5, width), (2, 3, width), (2, 3, 2, width)


def probe_inputs(eps: float, width: int) -> list[Tensor]:
    """Inputs of every scale: where eps is negligible, where it matters, where it dominates, and zero.

    Huge ones are included because a module may clamp its input to the range of float16.
    """
    small = math.sqrt(eps) if eps > 0 else 1e-4
    scales = (1.0, _LARGE, _HUGE, 1e-2, 3 * small, small, small / 10, _TINY, 0.0)
    shapes = _shapes(width)
    cases = [(shapes[i % len(shapes)], scale, 3 + i) for i, scale in enumerate(scales)]
    cases += [(shape, 1.0, 20) for shape in shapes]
    return [random_input(shape, scale, torch.float32, seed) for shape, scale, seed in cases]


def _result(module: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        y = call_forward(module, x.clone())
    if y.shape != x.shape or y.dtype != x.dtype:
        raise NotANormError
    return y


def _state(module: nn.Module) -> str:
    """Everything that a call could change, as text, including all values of parameters."""
    settings = {name: value for name, value in vars(module).items() if name not in ("_parameters", "training")}
    values = {name: None if p is None else p.tolist() for name, p in module._parameters.items()}
    return f"{settings}{values}"


def _structure(copied: nn.Module, inputs: list[Tensor], results: list[Tensor]) -> NormFormula:
    """The formula without eps, which is negligible here."""
    for form in _structures([name for name, p in copied._parameters.items() if p is not None]):
        if all(allclose(y, _formula(x, form, copied)) for x, y in zip(inputs, results, strict=True)):
            return form
    x = inputs[0] / _LARGE
    once, twice = _result(copied, x), _result(copied, 2 * x)
    size = float(once.abs().max())
    if float(once.std()) > 0.01 * size and bool(((once - twice).abs() < 0.01 * size).all()):
        raise UnknownNormError("it is scale-invariant like a norm, but is neither rms nor standardize over a row")
    raise NotANormError


def _structures(parameters: list[str]) -> Iterator[NormFormula]:
    known: list[str | None] = [*parameters, None, None]
    for gain, bias in itertools.permutations(parameters) if len(parameters) == 2 else [known[:2]]:
        for offset in (0.0, 1.0) if gain else (0.0,):
            yield NormFormula("rms", gain, bias, offset)
            yield NormFormula("standardize", gain, bias, offset)


def _formula(x: Tensor, form: NormFormula, module: nn.Module) -> Tensor:
    """The norm in float64, from its definition."""
    gain, bias = (None if name is None else module._parameters[name] for name in (form.gain, form.bias))
    y = x.double()
    if form.statistic == "standardize":
        y = y - y.mean(-1, keepdim=True)
    y = y / (y.square().mean(-1, keepdim=True) + form.eps).sqrt()
    if gain is not None:
        y = y * (gain.detach().double() + form.offset)
    if bias is not None:
        y = y + bias.detach().double()
    return y.to(x.dtype)


def _eps(module: nn.Module, form: NormFormula, width: int) -> tuple[float, str | None]:
    """Measure eps with tiny inputs; return it and the attribute that holds it, if any."""
    copied = randomized_copy(module)
    bias = None if form.bias is None else copied._parameters[form.bias]
    if bias is not None:
        bias.detach().zero_()  # a bias would cancel the digits of a tiny output
    x = random_input((5, width), _TINY, torch.float32, seed=30)
    y, plain = _result(copied, x).double(), _formula(x, replace(form, bias=None), copied).double()
    centered = x.double() - (x.double().mean(-1, keepdim=True) if form.statistic == "standardize" else 0.0)
    square = centered.square().mean(-1)
    # Of plain = c / sqrt(square) and y = c / sqrt(square + eps) the quotient tells eps, row by row.
    growth = (plain * plain).sum(-1) / (plain * y).sum(-1)
    found = float((square * (growth.square() - 1)).mean())
    unseen = 1e-4 * float(square.mean())  # below this, eps is lost in rounding
    if not math.isfinite(found) or found < -unseen:
        raise UnknownNormError("it does not behave like a norm for tiny inputs")
    for name, value in own_attributes(module).items():
        if "eps" in name.lower() and is_number(value) and math.isclose(value, found, rel_tol=1e-3, abs_tol=unseen):
            return float(value), name
    return (_round_number(found) if found > unseen else 0.0), None


def _round_number(value: float) -> float:
    """Round to a number with few digits if it is within measurement error."""
    for digits in (1, 2, 3):
        rounded = float(f"{value:.{digits}g}")
        if math.isclose(rounded, value, rel_tol=2e-6):
            return rounded
    return value
