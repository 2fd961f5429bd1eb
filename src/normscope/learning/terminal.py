"""Render an explanation as text, with or without colors."""

import math
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

import numpy as np

from normscope.learning.explanation import Explanation, ExplanationStep, ExplanationValue, ReferenceCheck
from normscope.learning.number_layout import format_values

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

    >>> from normscope.learning import explanation
    >>> print(render(explanation("requires-grad", [1.0, 2.0])))  # doctest: +ELLIPSIS
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
    from rich.text import Text  # imported only when needed

    return Text("\n").join(Text(text, style=STYLES.get(kind, "")) for text, kind in _lines(explanation, width))


def _lines(explanation: Explanation, width: int) -> Iterator[StyledLine]:
    yield explanation.title, "title"
    yield from ((text, "text") for text in textwrap.wrap(explanation.summary, width))
    yield "", "text"
    for value in explanation.given:
        yield from _given(value, explanation.digits, width)
    seen_nan = False
    for number, step in enumerate(explanation.steps, 1):
        yield "", "text"
        yield from _step(step, number, explanation.digits, width)
        if _has_nan(step.value):
            note = LATER_NAN if seen_nan else FIRST_NAN + (ZERO_EPS if _has_zero_eps(explanation) else "")
            yield from ((f"{INDENT}{text}", "differs") for text in textwrap.wrap(note, width - len(INDENT)))
            seen_nan = True


def _given(value: ExplanationValue, digits: int, width: int) -> Iterator[StyledLine]:
    lines = format_values(value, digits, width - len(INDENT))
    if len(lines) > 1 and not isinstance(value.content, str) and (value.content == value.content.flat[0]).all():
        yield f"{value.name}{_shape(value)}  all {value.content.flat[0]:g}", "numbers"
        return
    if len(lines) == 1 and len(value.name) + len(lines[0]) + 3 <= width:
        yield f"{value.name} = {lines[0].strip()}", "numbers"
        return
    yield f"{value.name}{_shape(value)}", "numbers"
    yield from ((f"{INDENT}{line}".rstrip(), "numbers") for line in lines)


def _step(step: ExplanationStep, number: int, digits: int, width: int) -> Iterator[StyledLine]:
    inner_width = width - len(INDENT)
    yield f"{number}. {step.title.replace('_', ' ')}{_shape(step.value)}", "heading"
    for text in textwrap.wrap(step.description, inner_width):
        yield f"{INDENT}{text}", "text"
    for text in step.code.splitlines():
        yield f"{INDENT}> {text}", "code"
    for text in format_values(step.value, digits, inner_width):
        yield f"{INDENT}{text}".rstrip(), "numbers"
    for check in step.checks:
        for text in textwrap.wrap(_check(check), inner_width, subsequent_indent=INDENT):
            yield f"{INDENT}{text}", "within tolerance" if check.within_tolerance else "differs"


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
