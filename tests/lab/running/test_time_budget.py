"""Time budgets of comparisons: kept, and used."""

import re
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from normscope.errors import ConfigError
from normscope.lab.compare.report import timing
from normscope.lab.running import time_estimates
from normscope.lab.running.time_estimates import FEWEST_STEPS, RunCost, measure_run_cost, run_costs, steps_within
from tests.lab.compare.comparing import Simulated, plan

DEPTHS = (1, 2, 3)


@given(
    st.lists(st.floats(0.001, 0.2), min_size=3, max_size=3),
    st.lists(st.floats(0.0, 2.0), min_size=3, max_size=3),
    st.floats(1.0, 30.0),
    st.integers(1, 8),
    st.integers(2, 12),
    st.booleans(),
    st.floats(0.5, 4.0),
)
def test_comparison_uses_but_does_not_exceed_its_time_budget(
    step: list[float], overhead: list[float], minutes: float, workers: int, seeds: int, refine: bool, slower: float
) -> None:
    what = plan(DEPTHS, minutes=minutes, workers=workers, seeds=seeds, refine=refine)
    by_depth = [dict(zip(DEPTHS, seconds, strict=True)) for seconds in (step, overhead)]
    simulated = Simulated(workers, by_depth[0], by_depth[1], start=5.0, slower=slower)
    try:
        found = simulated.run(what)
    except ConfigError as error:
        assert "do not fit" in str(error)  # noqa: PT017
        return
    assert found.steps >= FEWEST_STEPS
    assert 0.75 * 60 * minutes < simulated.clock <= 60 * minutes


def test_too_small_budget_error_suggests_enough_minutes() -> None:
    paces = [RunCost(0.1, 1.0), RunCost(0.3, 2.0)]
    with pytest.raises(ConfigError, match=r"10 runs of at least 40 steps do not fit into 0\.5 minutes") as refused:
        steps_within(paces, [5], 30.0, workers=1)
    minutes = int(re.search(r"--minutes (\d+)", str(refused.value))[1])  # type: ignore[index]
    assert minutes == 2  # 5 * (5 + 14) = 95 seconds of 40 steps each
    assert steps_within(paces, [5], 60.0 * minutes, workers=1) >= FEWEST_STEPS
    with pytest.raises(ConfigError, match="do not fit"):
        steps_within(paces, [5], 60.0 * (minutes - 1), workers=1)


def test_error_if_every_variant_diverges_at_once() -> None:
    with pytest.raises(ConfigError, match="every variant diverges in the first step"):
        steps_within([RunCost(0.0, 0.1)], [5], 60.0, workers=1)
    assert (
        steps_within([RunCost(0.0, 0.1), RunCost(0.1, 0.1)], [5], 60.0, workers=1) == 100
    )  # 5 * (0.1 + 0.1 + 10) = 51 s


@pytest.mark.parametrize(("step", "overhead"), [(0.002, 0.5), (0.05, 0.0), (2.0, 3.0), (0.0, 0.1)])
@pytest.mark.parametrize("slower", [1.0, 3.0])
def test_run_cost_matches_the_clock(
    step: float, overhead: float, slower: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run takes longer, which does not count; a busy machine slows everything down."""
    clock = SimpleNamespace(core=0.0, runs=0, steps=0)

    def train_text(settings: Mapping[str, Any], seed: int) -> dict[str, Any]:
        clock.core += overhead + step * settings["steps"] + (0 if clock.runs else 4.0)
        clock.runs += 1
        clock.steps += settings["steps"]
        return {"seconds_per_step": slower * step}

    monkeypatch.setattr(time_estimates, "train_text", train_text)
    clocks = SimpleNamespace(perf_counter=lambda: slower * clock.core, process_time=lambda: clock.core)
    monkeypatch.setattr(time_estimates, "time", clocks)
    found = measure_run_cost({}, seed=0)
    (pace,) = run_costs([found])
    assert (pace.step, pace.overhead) == pytest.approx((slower * step, slower * overhead))
    assert pace.spent == pytest.approx(slower * (clock.core - 4.0 - overhead - step))  # without the first run
    assert clock.steps <= 220


def test_nonpositive_step_time_falls_back_to_the_measured_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """By chance the run with few steps takes longer."""
    seconds = iter([9.0, 2.0, 1.0])
    clock = SimpleNamespace(now=0.0)

    def train_text(settings: Mapping[str, Any], seed: int) -> dict[str, Any]:
        clock.now += next(seconds)
        return {"seconds_per_step": 0.05}

    monkeypatch.setattr(time_estimates, "train_text", train_text)
    monkeypatch.setattr(
        time_estimates, "time", SimpleNamespace(perf_counter=lambda: clock.now, process_time=lambda: clock.now)
    )
    assert measure_run_cost({}, seed=0)["step"] == 0.05


def test_contention_scales_all_variants_alike() -> None:
    """CPU time hardly depends on other load, so the slowdown is measured over all variants together."""
    quiet = {"step": 0.01, "overhead": 0.1, "core": 1.0, "wall": 1.0, "spent": 2.0}
    first, second = run_costs([{**quiet, "wall": 3.0}, quiet])
    assert (first.step, first.overhead) == (second.step, second.overhead) == pytest.approx((0.02, 0.2))


def test_step_time_excludes_overhead() -> None:
    found = Simulated(2, step={1: 0.01, 2: 0.02}, overhead={1: 1.0, 2: 3.0}).run(plan((1, 2)))
    assert list(found.seconds.values()) == pytest.approx([0.01 * found.steps, 0.02 * found.steps])
    assert "measured with 2 parallel runs" in timing(found)
    assert "measured with one run at a time" in timing(replace(found, workers=1))
