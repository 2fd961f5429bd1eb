"""Curves for charts: thinned without losing a peak, smoothed without lagging."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normscope.render.curves import downsample, drops_early, smooth

seeded = settings(derandomize=True, deadline=None)
values = st.lists(st.floats(-1e6, 1e6) | st.just(math.nan), min_size=1, max_size=200)


@seeded
@given(values, st.integers(2, 40), st.booleans())
def test_thinning_keeps_order_room_and_extremes(ys: list[float], most: int, log_x: bool) -> None:
    points = [(float(x), y) for x, y in enumerate(ys, 1)]
    kept = downsample(points, most, log_x=log_x)
    assert len(kept) <= most
    assert set(map(id, kept)) <= set(map(id, points))
    assert [x for x, _ in kept] == sorted(x for x, _ in kept)
    known = [y for y in ys if math.isfinite(y)]
    if known:
        left = [y for _, y in kept if math.isfinite(y)]
        assert (min(left), max(left)) == (min(known), max(known))


def test_thinning_for_a_logarithmic_axis_keeps_the_beginning() -> None:
    points = [(float(x), float(x)) for x in range(1, 10_001)]
    assert [x for x, _ in downsample(points, 400, log_x=True)][:8] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [x for x, _ in downsample(points, 400)][1] == 50


@seeded
@given(values)
def test_smoothing_stays_among_the_values(ys: list[float]) -> None:
    smoothed = smooth([(float(x), y) for x, y in enumerate(ys)])
    known = [y for y in ys if math.isfinite(y)]
    assert len(smoothed) == len(known)
    for _, y in smoothed:
        assert min(known) - 1e-6 <= y <= max(known) + 1e-6


def test_smoothing_does_not_lag_and_does_calm() -> None:
    straight = [(float(x), 3.0 * x) for x in range(500)]
    inner = smooth(straight)[:480]
    assert [y for _, y in inner] == pytest.approx([3.0 * x for x in range(480)])
    jagged = [(float(x), float(x % 2)) for x in range(1000)]
    late = [y for x, y in smooth(jagged) if x > 200]
    assert max(late) - min(late) < 0.1


def test_falls_early() -> None:
    assert drops_early([(x, 1 + 3 / (1 + x / 8)) for x in range(1000)])
    assert not drops_early([(x, 4 - x / 500) for x in range(1000)])
    assert not drops_early([(x, x / 500) for x in range(1000)])
    assert not drops_early([(x, 1 / (1 + x)) for x in range(20)])
