"""Confidence intervals."""

import math
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from normscope.errors import ConfigError
from normscope.lab.results.statistics import confidence_interval, extremes
from normscope.lab.running.workers import RayWorkers
from normscope.lab.trials import images

VALUES = st.lists(st.integers(-(10**6), 10**6).map(lambda number: number / 1000), min_size=2, max_size=20)


@given(VALUES, st.floats(0.5, 0.999))
def test_interval_matches_scipy(values: list[float], confidence: float) -> None:
    found = confidence_interval(values, confidence)
    error = stats.sem(values)
    if error == 0:
        assert found.low == found.middle == found.high
        return
    low, high = stats.t.interval(confidence, len(values) - 1, loc=np.mean(values), scale=error)
    assert found.low == pytest.approx(low, rel=1e-9, abs=1e-9 * max(map(abs, values)))
    assert found.high == pytest.approx(high, rel=1e-9, abs=1e-9 * max(map(abs, values)))


def test_intervals_have_their_nominal_coverage() -> None:
    """With five seeds, for which the bootstrap and the normal distribution would be too narrow."""
    random = np.random.default_rng(0)
    hits = 0
    for _ in range(2000):
        found = confidence_interval(list(random.normal(3.0, 2.0, size=5)))
        hits += found.low < 3.0 < found.high
    assert 0.94 < hits / 2000 < 0.96


def test_higher_confidence_gives_a_wider_interval() -> None:
    values = [1.0, 2.0, 4.0]
    assert confidence_interval(values, 0.99).width > confidence_interval(values, 0.95).width


def test_single_value_has_an_infinite_interval() -> None:
    assert confidence_interval([2.0]).width == math.inf


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [math.inf, 1.0]])
def test_empty_and_non_finite_values_are_refused(values: list[float]) -> None:
    with pytest.raises(ConfigError, match="an interval needs"):
        confidence_interval(values)
    with pytest.raises(ConfigError, match="an interval needs"):
        extremes(values)


def test_confidence_must_be_between_0_and_1() -> None:
    with pytest.raises(ConfigError, match=r"confidence=95"):
        confidence_interval([1.0, 2.0], 95)


def test_missing_scipy_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    with pytest.raises(ConfigError, match=r"normscope\[lab\]"):
        confidence_interval([1.0, 2.0])


def test_missing_scikit_learn_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    images._all.cache_clear()
    with pytest.raises(ConfigError, match=r"normscope\[lab\]"):
        images.load_digits()


def test_missing_ray_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"normscope\[ray\]"):
        RayWorkers(1)
