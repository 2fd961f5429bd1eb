"""Render an explanation as text, with or without colors: matrices side by side, large ones abbreviated."""

import itertools
import math
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from normscope.learning.explanation import Explanation, ExplanationStep, ExplanationValue, ReferenceCheck

if TYPE_CHECKING:
    from rich.text import Text

WIDTH = 80
INDENT = "   "

LineKind = Literal["title", "heading", "text", "code", "numbers", "within tolerance", "differs"]

STYLES: dict[LineKind, str] = {
    "title": "bold",
    "heading": "bold cyan",
    "code": "green",
    "within tolerance": "dim",
    "differs": "bold yellow",
}
"""Styles by kind of line, for terminals with colors."""

FIRST_NAN = "NaN: the result of 0 / 0 or of infinities; it propagates to all later results."
ZERO_EPS = " With eps = 0, a row of zeros or without variance is divided by zero; any eps > 0 avoids that."
LATER_NAN = "NaN from an earlier step: the description above does not hold for this input."
"""Notes below results with NaN: where it first appears, why, and where it propagates."""

StyledLine = tuple[str, LineKind]
"""A line and its kind."""


def render(explanation: Explanation, width: int = WIDTH) -> str:
    """Render as plain text.

    >>> from normscope.learning.catalog import explain
    >>> print(render(explain("requires-grad", [1.0, 2.0])))  # doctest: +ELLIPSIS
    requires_grad
    ...
    1. y
       Forward. Because w has requires_grad=True, torch records how y is computed.
       > y = (x * w).sum()
       1.5
    ...
    """
    return "\n".join(text for text, _ in _lines(explanation, width))


def render_rich(explanation: Explanation, width: int = WIDTH) -> "Text":
    """Render for a terminal with colors."""
    from normscope.render.console import styled_lines  # imported on use: rich is slow

    return styled_lines([(text, STYLES.get(kind, ""))] for text, kind in _lines(explanation, width))


def _lines(explanation: Explanation, width: int) -> Iterator[StyledLine]:
    yield explanation.title, "title"
    yield from _wrapped(explanation.description, width, "text")
    yield "", "text"
    for value in explanation.given:
        yield from _given(value, explanation.digits, width)
    seen_nan = False
    for number, step in enumerate(explanation.steps, 1):
        yield "", "text"
        yield from _step(step, number, explanation.digits, width)
        if _has_nan(step.value):
            note = LATER_NAN if seen_nan else FIRST_NAN + (ZERO_EPS if _has_zero_eps(explanation) else "")
            yield from _wrapped(note, width, "differs", INDENT)
            seen_nan = True


def _wrapped(text: str, width: int, kind: LineKind, indent: str = "", then: str = "") -> Iterator[StyledLine]:
    """Yield the lines of a paragraph; those after the first are indented by `then` in addition."""
    for line in textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent + then):
        yield line, kind


def _given(value: ExplanationValue, digits: int, width: int) -> Iterator[StyledLine]:
    lines = format_values(value, digits, width - len(INDENT))
    if len(lines) > 1 and not isinstance(value.content, str) and (value.content == value.content.flat[0]).all():
        yield f"{value.name}{_shape(value)}  all {value.content.flat[0]:g}", "numbers"
    elif len(lines) == 1 and len(value.name) + len(lines[0]) + 3 <= width:
        yield f"{value.name} = {lines[0].strip()}", "numbers"
    else:
        yield f"{value.name}{_shape(value)}", "numbers"
        yield from ((f"{INDENT}{line}".rstrip(), "numbers") for line in lines)


def _step(step: ExplanationStep, number: int, digits: int, width: int) -> Iterator[StyledLine]:
    yield f"{number}. {step.title.replace('_', ' ')}{_shape(step.value)}", "heading"
    yield from _wrapped(step.description, width, "text", INDENT)
    for text in step.code.splitlines():
        yield f"{INDENT}> {text}", "code"
    for text in format_values(step.value, digits, width - len(INDENT)):
        yield f"{INDENT}{text}".rstrip(), "numbers"
    for check in step.checks:
        kind: LineKind = "within tolerance" if check.within_tolerance else "differs"
        yield from _wrapped(_check(check), width, kind, INDENT, INDENT)


def _has_nan(value: ExplanationValue) -> bool:
    return not isinstance(value.content, str) and bool(np.isnan(value.content).any())


def _has_zero_eps(explanation: Explanation) -> bool:
    return any(value.name == "eps" and not np.any(value.content) for value in explanation.given)


def _shape(value: ExplanationValue) -> str:
    return f"  ({' × '.join(map(str, value.shape))})" if len(value.shape) > 1 else ""


def _check(check: ReferenceCheck) -> str:
    size = f"{check.difference:.1e}" if check.difference else "0"
    text = f"largest difference from {check.reference}: {size}"
    if check.within_tolerance:
        return text
    if math.isinf(check.difference):
        return f"{text}: the values overflow float32"
    return f"{text}: above tolerance, float32 loses precision on these values"


LARGE = 200
"""Arrays with more values than this are abbreviated."""

GAP, BLOCK_GAP, ELLIPSIS = "  ", "    ", "…"

ShownIndices = list[int | None]
"""Indices along a dimension that are shown, with None where some are omitted."""


def format_values(value: ExplanationValue, digits: int, width: int) -> list[str]:
    """Format a value in lines of at most about this width.

    >>> array = np.array([[[0.5, 2.0], [0.25, -4.0]], [[1.0, 1.0], [1.0, 1.0]]])
    >>> images = ExplanationValue("x", array, axes=("c", "h", "w"))
    >>> print("\\n".join(format_values(images, digits=2, width=40)))
    c=0             c=1
     0.50   2.00     1.00   1.00
     0.25  -4.00     1.00   1.00
    """
    if isinstance(value.content, str):
        return value.content.splitlines()
    array = np.asarray(value.content)
    if array.ndim == 0:
        return [f"{array.item():.{max(digits, 6)}g}"]
    if value.columns:
        return _table(array, value.columns, digits)
    missing = max(0, 3 - array.ndim)
    axes = ("",) * missing + (value.axes or ("",) * array.ndim)
    return list(_bands(array.reshape((1,) * missing + array.shape), axes, digits, width))


def _table(array: NDArray[Any], columns: Sequence[str], digits: int) -> list[str]:
    """Format a table: a title row, and a number format per column."""
    shown = ends(len(array), _most(array)[1])
    drawn = []
    for title, column in zip(columns, array.T, strict=True):
        text = _format(column[_kept(shown)], digits)
        cells = [title, *(ELLIPSIS if row is None else text(column[row]) for row in shown)]
        widest = max(map(len, cells))
        drawn.append([f"{cell:>{widest}}" for cell in cells])
    return [GAP.join(row) for row in zip(*drawn, strict=True)]


def _bands(array: NDArray[Any], axes: Sequence[str], digits: int, width: int) -> Iterator[str]:
    """Yield a band of matrices for each index of the dimensions before the last three."""
    most_blocks, most_rows, most_columns = _most(array)
    shown = [ends(size, most_blocks) for size in array.shape[:-2]] + [ends(array.shape[-2], most_rows)]
    visible = array[np.ix_(*map(_kept, shown))]
    text = _format(visible[..., :width], digits)
    cell = max(len(text(number)) for number in visible[..., :width].flat)
    margin = sum(len(_label(axes[i], array.shape[i] - 1)) + 2 for i in range(array.ndim - 3) if array.shape[i] > 1)
    fitting = max(3, (width - margin + len(GAP)) // (cell + len(GAP)))
    shown.append(ends(array.shape[-1], min(fitting, most_columns)))
    first = True
    for place in itertools.product(*shown[:-3]):
        if None in place:
            yield from () if first else (ELLIPSIS,)
            continue
        band = array[tuple(at for at in place if at is not None)]
        named = [(axis, at, size) for axis, at, size in zip(axes, place, array.shape[:-3], strict=False)]
        label = GAP.join(_label(axis, at) for axis, at, size in named if size > 1 and at is not None)
        blocks = [_block(band, at, axes[-3], shown[-2:], text, cell) for at in shown[-3]]
        if not first and array.shape[-3] * array.shape[-2] > 1:
            yield ""
        first = False
        yield from _flow(blocks, f"{label}{GAP}" if label else "", width)


def _block(
    band: NDArray[Any], at: int | None, axis: str, shown: Sequence[ShownIndices], text: Callable[[Any], str], cell: int
) -> list[str]:
    """Format one matrix, with a label if there are several."""
    if at is None:
        return [ELLIPSIS]
    rows, columns = shown
    lines = [_label(axis, at)] if len(band) > 1 else []
    for row in rows:
        if row is None:
            lines.append(ELLIPSIS)
            continue
        cells = (f"{ELLIPSIS if column is None else text(band[at, row, column]):>{cell}}" for column in columns)
        lines.append(GAP.join(cells))
    return lines


def _flow(blocks: Sequence[list[str]], label: str, width: int) -> Iterator[str]:
    """Arrange blocks side by side, as many as fit; the label of the band comes first."""
    widest = max(len(line) for block in blocks for line in block)
    count = max(1, (width - len(label) + len(BLOCK_GAP)) // (widest + len(BLOCK_GAP)))
    for start in range(0, len(blocks), count):
        lines = itertools.zip_longest(*blocks[start : start + count], fillvalue="")
        for number, parts in enumerate(lines):
            before = label if start == 0 and number == 0 else " " * len(label)
            yield (before + BLOCK_GAP.join(f"{part:{widest}}" for part in parts)).rstrip()


def _label(axis: str, at: int) -> str:
    return f"{axis}={at}" if axis else f"[{at}]"


def ends(size: int, most: int) -> ShownIndices:
    """Return all indices of a dimension; or the first ones and the last, with None in between.

    >>> ends(3, 5), ends(100, 5)
    ([0, 1, 2], [0, 1, 2, None, 99])
    """
    if size <= most:
        return list(range(size))
    return [*range(max(1, most - 2)), None, size - 1]


def _most(array: NDArray[Any]) -> tuple[int, int, int]:
    """Return the maximum number of matrices, rows and columns to show; the width may limit columns further."""
    return (3, 5, 6) if array.size > LARGE else (8, 20, LARGE)


def _kept(shown: ShownIndices) -> list[int]:
    return [at for at in shown if at is not None]


def _format(numbers: NDArray[Any], digits: int) -> Callable[[Any], str]:
    """Return a common format for these numbers: integer, fixed-point or scientific."""
    finite = np.abs(numbers[np.isfinite(numbers)])
    largest = finite.max() if finite.size else 0.0
    if largest >= 1e6 or 0 < largest < 10.0**-digits:
        return lambda number: f"{number:.{max(1, digits - 1)}e}"
    places = next((count for count in range(digits) if _is_exact(finite, count)), digits)
    # Values that round to zero lose their sign, to avoid -0.0000.
    return lambda number: f"{np.round(number, places) + 0.0:.{places}f}" if math.isfinite(number) else f"{number}"


def _is_exact(numbers: NDArray[Any], places: int) -> bool:
    """Whether this many decimals represent the numbers exactly, up to float32 rounding."""
    return bool((np.abs(numbers - np.round(numbers, places)) <= 5e-7 * numbers).all())
