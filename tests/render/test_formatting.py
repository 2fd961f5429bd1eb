"""Figures in three digits: near enough, and never too wide."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normscope.render.formatting import format_number, one_line, pluralize

seeded = settings(derandomize=True, deadline=None)


@seeded
@given(st.floats(-1e307, 1e307))
def test_a_figure_is_near_enough_and_narrow(number: float) -> None:
    three_digits = 1e-99 < abs(number) < 1e99
    assert float(format_number(number)) == pytest.approx(number, rel=0.0051 if three_digits else 0.051, abs=1e-320)
    assert len(format_number(abs(number))) <= 8


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_says_so(number: float) -> None:
    assert format_number(number) == str(number)


@seeded
@given(st.text(st.characters(exclude_categories=())))
def test_one_line_is_one_line(text: str) -> None:
    assert one_line(text).isprintable()


@pytest.mark.parametrize(("number", "words"), [(0, "0 passes"), (1, "1 pass"), (1_200, "1,200 passes")])
def test_things_are_counted(number: int, words: str) -> None:
    assert pluralize(number, "pass") == words
