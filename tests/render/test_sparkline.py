"""Sparklines have the given size, and their heights follow the values."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from normscope.render.sparkline import BLOCKS, sparkline

seeded = settings(derandomize=True, deadline=None)
finite = st.floats(allow_nan=False, allow_infinity=False)
numbers = st.lists(st.floats(), max_size=50)


def levels(rows: list[str]) -> list[int]:
    """The height of each column, in eighths of a row."""
    return [sum(BLOCKS.index(block) for block in column) for column in zip(*rows, strict=True)]


@seeded
@given(numbers, st.integers(-1, 20), st.integers(0, 3))
def test_size(values: list[float], width: int, height: int) -> None:
    rows = sparkline(values, width, height)
    if width < 1 or height < 1:
        assert rows == []
    else:
        assert [len(row) for row in rows] == [min(width, len(values))] * height
        assert set("".join(rows)) <= set(BLOCKS)


@seeded
@given(st.lists(finite, min_size=1, max_size=30), st.integers(1, 3))
def test_order_and_ends(values: list[float], height: int) -> None:
    drawn = levels(sparkline(values, 30, height))
    for value, level in zip(values, drawn, strict=True):
        for other, other_level in zip(values, drawn, strict=True):
            assert value >= other or level <= other_level
    assert min(drawn) == 1
    if max(values) / 2 - min(values) / 2 > 0:
        assert drawn[values.index(max(values))] == 8 * height


@seeded
@given(st.lists(finite, min_size=1, max_size=30), st.integers(1, 3))
def test_columns_have_no_holes(values: list[float], height: int) -> None:
    for column in zip(*sparkline(values, 30, height), strict=True):
        filled = "".join(column).lstrip(" ")
        assert set(filled[1:]) <= {"█"}


@seeded
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20), st.integers(1, 20), st.integers(2, 5))
def test_bins_are_averaged(values: list[float], width: int, times: int) -> None:
    """A curve of which every value is there several times is the same curve."""
    width = len(values)
    repeated = [value for value in values for _ in range(times)]
    pairs = zip(levels(sparkline(values, width)), levels(sparkline(repeated, width)), strict=True)
    assert all(abs(once - often) <= 1 for once, often in pairs)  # a sum of rounded parts may round the other way


def test_gaps() -> None:
    assert sparkline([1.0, math.nan, 2.0, math.inf], 4) == ["▁ █ "]
    assert sparkline([math.nan, 1.0, 3.0, 3.0], 2) == ["▁█"]
    assert sparkline([math.nan] * 4, 2) == ["  "]
    assert sparkline([], 5) == [""]
