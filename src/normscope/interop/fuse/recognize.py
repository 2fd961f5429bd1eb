"""Recognize which formula a module computes by running a copy of it; its name is ignored.

large inputs    eps is negligible: determine the statistic and the role of the parameters
tiny inputs     eps dominates: measure it
all scales      compare the formula with the module; an eps in another place shows here
"""

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from normscope.checks import is_number
from normscope.interop.fuse.equivalence import allclose, call_forward
from normscope.interop.fuse.module_copies import own_attributes, random_input, randomized_copy
from normscope.interop.fuse.row_norm import RowNormFormula

_HUGE, _LARGE, _TINY = 1e7, 1e3, 1e-8
_WIDTHS = (16, 24)  # for modules without parameters, whose input width is unknown


class NotANormError(Exception):
    """The module is not scale-invariant, so it is not a norm."""


class UnknownNormError(Exception):
    """The module resembles a norm, but matches no known formula."""


def recognize_norm(module: nn.Module) -> RowNormFormula:
    """Recognize a module without submodules and buffers, with at most a weight and a bias."""
    sizes = {parameter.numel() for parameter in module._parameters.values() if parameter is not None}
    if sizes:
        return _recognize_width(module, sizes.pop())
    try:
        one, other = (replace(_recognize_width(module, width), width=None) for width in _WIDTHS)
        if one == other:
            return one
    except (NotANormError, UnknownNormError):
        raise
    except Exception as error:  # it may accept only the width in its attributes
        for width in _whole_numbers(module):
            return _recognize_width(module, width)
        raise error from None
    raise UnknownNormError("its formula depends on the input width")


def _whole_numbers(module: nn.Module) -> Iterator[int]:
    for value in own_attributes(module).values():
        for size in value if isinstance(value, list | tuple) else [value]:
            if isinstance(size, int) and not isinstance(size, bool) and size > 1:
                yield size


def _recognize_width(module: nn.Module, width: int) -> RowNormFormula:
    copied = randomized_copy(module)
    before = _state(copied)
    large = [random_input(shape, _LARGE, torch.float32, seed=2) for shape in _shapes(width)]
    results = [_result(copied, x) for x in large]
    form = replace(_structure(copied, large, results), width=width)
    eps, name = _eps(module, form, width)
    form = replace(form, eps=eps, eps_name=name)
    for x in probe_inputs(form.eps, width):
        if not allclose(_result(copied, x), _formula(x, form, copied)):
            raise UnknownNormError(
                f"it is {form.statistic} for large inputs, but not for small ones: what keeps it from dividing by zero "
                f"is not an eps under the square root"
            )
    broken = torch.where(torch.arange(width) == 1, torch.nan, random_input((2, width), 1.0, torch.float32, seed=31))
    if not allclose(_result(copied, broken), _formula(broken, form, copied)):
        raise UnknownNormError("it makes numbers of what is not a number")
    if _state(copied) != before:
        raise UnknownNormError("calling it changes its state")
    return form


def _shapes(width: int) -> tuple[tuple[int, ...], ...]:
    return (5, width), (2, 3, width), (2, 3, 2, width)


def probe_inputs(eps: float, width: int) -> list[Tensor]:
    """Inputs of every size: where eps has no say, where it has a little, where it has all, and zero.

    And huge ones, because a module may clamp what it is given to what float16 holds.
    """
    turn = math.sqrt(eps) if eps > 0 else 1e-4
    scales = (1.0, _LARGE, _HUGE, 1e-2, 3 * turn, turn, turn / 10, _TINY, 0.0)
    shapes = _shapes(width)
    return [
        random_input(shapes[i % len(shapes)], scale, torch.float32, seed=3 + i) for i, scale in enumerate(scales)
    ] + [random_input(shape, 1.0, torch.float32, seed=20) for shape in shapes]


def _result(module: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        y = call_forward(module, x.clone())
    if y.shape != x.shape or y.dtype != x.dtype:
        raise NotANormError
    return y


def _state(module: nn.Module) -> str:
    """Everything that a call could change, as text: numbers of tensors in full."""
    settings = {name: value for name, value in vars(module).items() if name not in ("_parameters", "training")}
    values = {name: None if p is None else p.tolist() for name, p in module._parameters.items()}
    return f"{settings}{values}"


def _structure(copied: nn.Module, inputs: list[Tensor], results: list[Tensor]) -> RowNormFormula:
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


def _structures(parameters: list[str]) -> Iterator[RowNormFormula]:
    orders: dict[int, list[tuple[str | None, str | None]]] = {
        0: [(None, None)],
        1: [(parameters[0], None)] if parameters else [],
        2: [(parameters[0], parameters[-1]), (parameters[-1], parameters[0])] if parameters else [],
    }
    for gain, bias in orders[len(parameters)]:
        for offset in (0.0, 1.0) if gain else (0.0,):
            yield RowNormFormula("rms", gain, bias, offset)
            yield RowNormFormula("standardize", gain, bias, offset)


def _formula(x: Tensor, form: RowNormFormula, module: nn.Module) -> Tensor:
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


def _eps(module: nn.Module, form: RowNormFormula, width: int) -> tuple[float, str | None]:
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
