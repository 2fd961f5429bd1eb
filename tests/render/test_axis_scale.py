"""Axes: everything has its place, and the ticks are round."""

import math
from itertools import pairwise

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from normscope.render.axis_scale import Scale, fit_scale, tick_label

seeded = settings(derandomize=True, deadline=None)
numbers = st.floats(-1e9, 1e9)
positive = st.floats(1e-9, 1e9)


@seeded
@given(st.lists(numbers, max_size=10))
def test_everything_is_inside(values: list[float]) -> None:
    scale = fit_scale([*values, math.nan, math.inf], 50, 500)
    assert all(50 <= scale.position(value) <= 500 for value in values)


@seeded
@given(st.lists(positive, max_size=10))
def test_everything_is_inside_a_logarithmic_scale(values: list[float]) -> None:
    scale = fit_scale([*values, 0.0, -1.0, math.nan], 500, 50, log=True)
    assert all(50 - 1e-6 <= scale.position(value) <= 500 + 1e-6 for value in values)


@seeded
@given(numbers, numbers, st.integers(2, 12))
def test_ticks_are_round_inside_and_not_too_many(low: float, high: float, most: int) -> None:
    assume(high - low > 1e-6 * max(abs(low), abs(high), 1e-3))
    ticks = Scale(low, high, 0, 100).ticks(most)
    slack = 1e-6 * (high - low)
    assert all(low - slack <= tick <= high + slack for tick in ticks)
    assert 1 <= len(ticks) <= most + 1 or most < 4
    if len(ticks) > 1:
        gaps = [later - earlier for earlier, later in pairwise(ticks)]
        step = gaps[0]
        assert all(math.isclose(gap, step, rel_tol=1e-6) for gap in gaps)
        leading = step / 10 ** math.floor(math.log10(step) + 1e-9)
        assert any(math.isclose(leading, round_one, rel_tol=1e-6) for round_one in (1, 2, 5))


@seeded
@given(positive, st.floats(1.001, 1e9), st.integers(3, 12))
def test_logarithmic_ticks(low: float, ratio: float, most: int) -> None:
    scale = Scale(low, low * ratio, 0, 100, log=True)
    ticks = scale.ticks(most)
    assert ticks == sorted(set(ticks))
    assert all(-1e-3 <= scale.position(tick) <= 100 + 1e-3 for tick in ticks)
    assert 1 <= len(ticks) <= most + 1


@seeded
@given(numbers, numbers)
def test_labels_tell_ticks_apart(low: float, high: float) -> None:
    assume(high - low > 1e-3 * max(abs(low), abs(high), 1e-3))
    labels = [tick_label(tick) for tick in Scale(low, high, 0, 100).ticks(6)]
    assert len(labels) == len(set(labels))
    assert max(map(len, labels), default=0) <= 11
