"""The progress of a run: running means, times, and the distance to the floor."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normscope.runs.events import ThreadsEvent
from normscope.training.observers.progress import LossHistory, RunningMean, RunProgress
from tests.training.observers.simulated import FLOOR, Clock, started, stepped, validated

seeded = settings(derandomize=True, deadline=None)


@seeded
@given(st.lists(st.floats(-100, 100), min_size=1, max_size=50), st.floats(0, 50))
def test_the_running_mean_is_within_the_range_of_values(values: list[float], steps: float) -> None:
    mean = RunningMean(steps)
    for value in values:
        mean.add(value)
    assert min(values) - 1e-9 <= mean.value <= max(values) + 1e-9


def test_the_running_mean_decays_and_skips_nonfinite_values() -> None:
    mean = RunningMean(5)
    assert math.isnan(mean.value)
    for value in [100.0, math.nan, math.inf] + [1.0] * 100:
        mean.add(value)
    assert mean.value == pytest.approx(1.0)


@seeded
@given(st.integers(1, 6), st.lists(st.floats(-10, 10), max_size=300))
def test_the_loss_history_keeps_its_capacity_and_mean(half: int, values: list[float]) -> None:
    history = LossHistory(capacity=2 * half)
    for value in values:
        history.add(value)
    assert len(history.values) <= 2 * half
    if history.values:
        each = 1
        while len(values) // each > 2 * half:
            each *= 2
        told = values[: each * len(history.values)]
        assert sum(history.values) / len(history.values) == pytest.approx(sum(told) / len(told), abs=1e-6)
        assert len(values) - len(told) <= 2 * each


def test_seconds_left_includes_time_between_steps() -> None:
    clock = Clock()
    progress = RunProgress(clock)
    progress.on_event(started(steps=100))
    assert math.isnan(progress.seconds_left)
    for step in range(1, 21):
        clock.now += 0.5
        progress.on_event(stepped(step, seconds=0.5))
    assert progress.seconds_left == pytest.approx(80 * 0.5)
    clock.now += 10  # a validation, say
    assert progress.seconds_left == pytest.approx(80 * (0.5 + 10 / 17))  # the first three steps do not count
    assert progress.tokens_per_second == pytest.approx(2048 / 0.5)


def test_seconds_left_is_unknown_during_warmup() -> None:
    """They load and compile for minutes: no word of hours, neither then nor later."""
    clock = Clock()
    progress = RunProgress(clock)
    progress.on_event(started(steps=500))
    for step, seconds in enumerate([60.0, 9.0, 1.0, 0.1, 0.1], 1):
        clock.now += seconds + 5 * (step == 1)  # and before the first of them
        progress.on_event(stepped(step, seconds=seconds))
        assert math.isnan(progress.seconds_left)
        assert progress.tokens_per_second == pytest.approx(2048 / seconds)
    for step in range(6, 11):
        clock.now += 0.1
        progress.on_event(stepped(step, seconds=0.1))
        assert progress.seconds_left == pytest.approx(0.1 * (500 - step))
    clock.now += 30
    progress.on_event(stepped(11, seconds=30.0))  # a single slow one changes no speed
    assert progress.tokens_per_second == pytest.approx(20480)


def test_speed_is_that_of_recent_steps() -> None:
    progress = RunProgress(Clock())
    progress.on_event(started(steps=1000))
    for step in range(1, 401):
        progress.on_event(stepped(step, seconds=1.0 if step < 200 else 0.1))
    assert progress.tokens_per_second == pytest.approx(20480, rel=0.01)


@pytest.mark.parametrize(("bits", "share"), [(5.0, 0.0), (0.5, 1.0), (FLOOR, 1.0), (math.nan, None)])
def test_learned_goes_from_a_uniform_guess_to_the_floor(bits: float, share: float | None) -> None:
    progress = RunProgress(Clock())
    progress.on_event(started())
    assert progress.learned is None
    progress.on_event(validated(5, bits * math.log(2) * 1.5))
    assert progress.learned == share


def test_learned_is_half_at_the_midpoint() -> None:
    progress = RunProgress(Clock())
    progress.on_event(started())
    assert progress.uniform_bits * math.log(2) * 1.5 == pytest.approx(math.log(65))  # of a uniform guess
    progress.on_event(validated(5, (progress.uniform_bits + FLOOR) / 2 * math.log(2) * 1.5))
    assert progress.learned == pytest.approx(0.5)


def test_the_best_validation_is_the_one_marked_best() -> None:
    progress = RunProgress(Clock())
    progress.on_event(validated(5, 2.0, best=False))  # a run that goes on had a better one before
    first = progress.best
    good, worse = validated(6, 1.5), validated(7, 1.7, best=False)
    progress.on_event(good)
    progress.on_event(worse)
    assert (first, progress.best, progress.validation) == (None, good, worse)


def test_before_the_start_nothing_is_known() -> None:
    progress = RunProgress(Clock())
    assert (progress.step, progress.steps, progress.floor, progress.learned) == (0, 0, None, None)
    assert math.isnan(progress.loss)
    assert math.isnan(progress.uniform_bits)
    assert math.isnan(progress.tokens_per_second)


def test_threads_are_known_while_the_machine_is_busy() -> None:
    progress = RunProgress(Clock())
    for step, threads, busy in ((3, 1, True), (5, 4, True), (9, 4, False)):
        event = ThreadsEvent(step, threads, max_threads=4, busy=busy)
        progress.on_event(event)
        assert progress.threads == (event if busy else None)
