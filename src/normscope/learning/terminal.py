"""An explanation as text, for a terminal with colours or without. The numbers come from elsewhere."""

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

Kind = Literal["title", "heading", "words", "code", "numbers", "agrees", "differs"]

STYLES: dict[Kind, str] = {
    "title": "bold",
    "heading": "bold cyan",
    "code": "green",
    "agrees": "dim",
    "differs": "bold yellow",
}
"""The kinds of lines that have a style in a terminal with colours."""

BORN = "nan is not a number: it came of 0 / 0, or of infinities, and spreads to all that is made of it."
NO_EPS = " With eps 0 a row that has no size, or no spread, is divided by zero; any eps above 0 keeps it from that."
SPREADS = "nan came from a step before: for these numbers the words above do not hold."
"""What is said below numbers of which some are none: where it begins, why, and where it goes on."""

Line = tuple[str, Kind]
"""A line, and its kind."""


def render(explanation: Explanation, width: int = WIDTH) -> str:
    """The explanation as plain text.

    >>> from normscope.learning import explanation
    >>> print(render(explanation("requires-grad", [1.0, 2.0])))  # doctest: +ELLIPSIS
    requires_grad
    ...
    1. y
       Forward. Because w has requires_grad=True, torch notes down how y came about.
       > y = (x * w).sum()
       1.5
    ...
    """
    return "\n".join(text for text, _ in _lines(explanation, width))


def render_rich(explanation: Explanation, width: int = WIDTH) -> "Text":
    """The same for a terminal with colours."""
    from rich.text import Text  # only those who want colours wait for it

    return Text("\n").join(Text(text, style=STYLES.get(kind, "")) for text, kind in _lines(explanation, width))


def _lines(explanation: Explanation, width: int) -> Iterator[Line]:
    yield explanation.title, "title"
    yield from ((text, "words") for text in textwrap.wrap(explanation.summary, width))
    yield "", "words"
    for value in explanation.given:
        yield from _given(value, explanation.digits, width)
    spoilt = False
    for number, step in enumerate(explanation.steps, 1):
        yield "", "words"
        yield from _step(step, number, explanation.digits, width)
        if _has_nan(step.value):
            words = SPREADS if spoilt else BORN + (NO_EPS if _is_without_eps(explanation) else "")
            yield from ((f"{INDENT}{text}", "differs") for text in textwrap.wrap(words, width - len(INDENT)))
            spoilt = True


def _given(value: ExplanationValue, digits: int, width: int) -> Iterator[Line]:
    lines = format_values(value, digits, width - len(INDENT))
    if len(lines) > 1 and not isinstance(value.content, str) and (value.content == value.content.flat[0]).all():
        yield f"{value.name}{_shape(value)}  all {value.content.flat[0]:g}", "numbers"
        return
    if len(lines) == 1 and len(value.name) + len(lines[0]) + 3 <= width:
        yield f"{value.name} = {lines[0].strip()}", "numbers"
        return
    yield f"{value.name}{_shape(value)}", "numbers"
    yield from ((f"{INDENT}{line}".rstrip(), "numbers") for line in lines)


def _step(step: ExplanationStep, number: int, digits: int, width: int) -> Iterator[Line]:
    room = width - len(INDENT)
    yield f"{number}. {step.title.replace('_', ' ')}{_shape(step.value)}", "heading"
    for text in textwrap.wrap(step.words, room):
        yield f"{INDENT}{text}", "words"
    for text in step.code.splitlines():
        yield f"{INDENT}> {text}", "code"
    for text in format_values(step.value, digits, room):
        yield f"{INDENT}{text}".rstrip(), "numbers"
    for check in step.checks:
        for text in textwrap.wrap(_check(check), room, subsequent_indent=INDENT):
            yield f"{INDENT}{text}", "agrees" if check.within_tolerance else "differs"


def _has_nan(value: ExplanationValue) -> bool:
    return not isinstance(value.content, str) and bool(np.isnan(value.content).any())


def _is_without_eps(explanation: Explanation) -> bool:
    return any(value.name == "eps" and not np.any(value.content) for value in explanation.given)


def _shape(value: ExplanationValue) -> str:
    return f"  ({' × '.join(map(str, value.shape))})" if len(value.shape) > 1 else ""


def _check(check: ReferenceCheck) -> str:
    size = f"{check.difference:.1e}" if check.difference else "0"
    found = f"largest difference from {check.reference}: {size}"
    if check.within_tolerance:
        return found
    if math.isinf(check.difference):
        return f"{found}, for these numbers go beyond what float32 can hold"
    return f"{found}, which is much: these numbers lose digits in float32"
