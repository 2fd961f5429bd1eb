"""Decisions about threads, simulated: the time of a step depends on the threads and on the load."""

import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from normscope.runtime.thread_chooser import TUNING, ThreadChooser, ThreadSuggestion

StepTime = Callable[[int, float], float]
Load = Callable[[float], ThreadSuggestion | None]


class World:
    """Runs a chooser for a while: what it used, and how much longer that took than with the number it settled on."""

    def __init__(self, chooser: ThreadChooser, step_time: StepTime, load: Load) -> None:
        self.chooser, self.step_time, self.load = chooser, step_time, load
        self.now = self.wasted = 0.0
        self.used: list[int] = []

    def run(self, seconds: float) -> "World":
        end = self.now + seconds
        while self.now < end:
            threads = self.chooser.threads
            took = self.step_time(threads, self.now)
            self.wasted += max(0.0, took - self.step_time(self.chooser.chosen, self.now))
            self.used.append(threads)
            self.now += took
            self.chooser.step(took, self.load(self.now))
        return self


def idle(threads: int, now: float = 0.0) -> float:
    return 0.04 / math.pow(threads, 0.7)


def crowded(threads: int, now: float = 0.0) -> float:
    """Another process has a core of two: one thread runs undisturbed, two wait for each other."""
    return 0.04 if threads == 1 else 0.12


ONE_FREE, BOTH_FREE = ThreadSuggestion(threads=1, free_cores=1), ThreadSuggestion(threads=2, free_cores=2)


def taken(now: float) -> ThreadSuggestion:
    return ONE_FREE


def empty(now: float) -> ThreadSuggestion:
    return BOTH_FREE


def unknown(now: float) -> None:
    return None


def test_an_idle_machine_runs_no_trial() -> None:
    assert set(World(ThreadChooser(2), idle, empty).run(60).used) == {2}


@pytest.mark.parametrize("load", [empty, unknown])
def test_noise_on_an_idle_machine_costs_next_to_nothing(load: Load) -> None:
    noise = random.Random(3)

    def noisy(threads: int, now: float) -> float:
        return idle(threads) * noise.lognormvariate(0, 0.2) * (10 if noise.random() < 0.01 else 1)

    world = World(ThreadChooser(2), noisy, load).run(300)
    assert world.chooser.chosen == 2
    assert world.used.count(1) * (idle(1) - idle(2)) < 0.02 * 300


def test_threads_are_reduced_under_load_and_restored_afterwards() -> None:
    def busy_for_ten_seconds(threads: int, now: float) -> float:
        return crowded(threads) if 10 <= now < 20 else idle(threads)

    world = World(ThreadChooser(2), busy_for_ten_seconds, lambda now: ONE_FREE if 10 <= now < 20 else BOTH_FREE)
    assert world.run(10).chooser.chosen == 2
    assert world.run(2).chooser.chosen == 1  # within two seconds
    assert world.run(8).chooser.chosen == 1
    assert world.run(2).chooser.chosen == 2
    assert set(world.run(5).used[-50:]) == {2}


def test_slow_steps_trigger_a_trial_if_the_load_is_unknown() -> None:
    def busy_for_ten_seconds(threads: int, now: float) -> float:
        return crowded(threads) if 10 <= now < 20 else idle(threads)

    world = World(ThreadChooser(2), busy_for_ten_seconds, unknown)
    assert world.run(10).chooser.chosen == 2
    assert world.run(3).chooser.chosen == 1
    assert world.run(7).chooser.chosen == 1
    assert world.run(30).chooser.chosen == 2  # found by trying now and then


def test_a_busy_machine_is_handled_from_the_first_step() -> None:
    world = World(ThreadChooser(2, ONE_FREE), crowded, taken).run(60)
    assert (world.used[0], world.chooser.chosen) == (1, 1)
    assert world.wasted < TUNING.budget_rate * 60 + TUNING.max_budget


def test_low_priority_load_does_not_reduce_threads() -> None:
    """It uses what is left over, so the cores look taken; but more threads are faster all the same."""
    world = World(ThreadChooser(2, ONE_FREE), idle, taken).run(60)
    assert world.chooser.chosen == 2
    assert world.wasted < TUNING.budget_rate * 60 + 2 * TUNING.max_budget


def test_the_cost_of_trials_is_bounded_under_changing_load() -> None:
    def flapping(now: float) -> ThreadSuggestion:
        return ONE_FREE if int(now) % 2 else BOTH_FREE

    for step_time in (idle, crowded):
        world = World(ThreadChooser(2), step_time, flapping).run(120)
        assert world.wasted < 2 * TUNING.budget_rate * 120 + 4 * TUNING.max_budget


def test_a_hopeless_trial_ends_early() -> None:
    def collapsed(threads: int, now: float) -> float:
        return 0.04 if threads == 1 else 2.0

    world = World(ThreadChooser(2, ONE_FREE), collapsed, taken).run(60)
    assert world.chooser.chosen == 1
    assert world.used.count(2) <= 2


def test_all_free_cores_are_used() -> None:
    def of_eight(threads: int, now: float) -> float:
        return 0.1 / threads if threads <= 6 else 0.1

    six = ThreadSuggestion(threads=6, free_cores=6)
    world = World(ThreadChooser(8), of_eight, lambda now: six).run(5)
    assert world.chooser.chosen == 6
    assert World(ThreadChooser(8, six), of_eight, lambda now: six).run(30).chooser.chosen == 6


def test_with_all_cores_contended_fewer_threads_are_tried_first() -> None:
    def fewer_win(threads: int, now: float) -> float:
        return 0.05 * threads

    shared = ThreadSuggestion(threads=4, free_cores=1)
    for step_time, chosen in ((idle, 4), (fewer_win, 1)):
        world = World(ThreadChooser(4, shared), step_time, lambda now: shared).run(30)
        assert world.used[0] == 4
        assert world.chooser.chosen == chosen
        assert world.chooser.fewer_were_slower == (chosen == 4)


def settled_share(memory: float) -> float:
    """How much of the time one thread is settled on, where it is faster on average and single trials are noisy."""
    noise = random.Random(3)
    lucky: dict[tuple[int, int], float] = {}

    def noisy(threads: int, now: float) -> float:
        # The scheduler's favors last longer than a block of a trial.
        luck = lucky.setdefault((threads, int(now / 0.3)), noise.lognormvariate(0, 0.6))
        return (0.02 if threads == 1 else 0.026) * luck

    shared = ThreadSuggestion(threads=2, free_cores=1)
    world = World(ThreadChooser(2, shared, tuning=replace(TUNING, history_decay=memory)), noisy, lambda now: shared)
    each_second = [world.run(1).chooser.chosen for _ in range(600)]
    return each_second.count(1) / len(each_second)


def test_one_lucky_trial_does_not_undo_several() -> None:
    assert settled_share(TUNING.history_decay) > settled_share(memory=0.0) + 0.05


def test_a_moment_of_load_changes_nothing() -> None:
    def a_moment(now: float) -> ThreadSuggestion:
        return ONE_FREE if 5 <= now < 5 + TUNING.patience / 2 else BOTH_FREE

    assert set(World(ThreadChooser(2), idle, a_moment).run(10).used) == {2}


def test_slow_work_does_not_cause_repeated_trials() -> None:
    """It takes three times as long from some moment on, with any number of threads."""
    world = World(ThreadChooser(2), lambda threads, now: idle(threads) * (1 if now < 5 else 3), unknown).run(120)
    assert world.chooser.chosen == 2
    assert 0 < world.used.count(1) < 0.01 * len(world.used)


def test_a_number_that_is_not_allowed_is_never_used() -> None:
    asked: list[int] = []

    def is_allowed(threads: int) -> bool:
        asked.append(threads)
        return threads == 1

    chooser = ThreadChooser(4, is_allowed=is_allowed)
    assert not chooser.fewer_are_not_allowed
    world = World(
        chooser, lambda threads, now: 0.1 * threads, lambda now: ThreadSuggestion(threads=3, free_cores=3)
    ).run(60)
    assert set(world.used) == {4, 1}
    assert (chooser.chosen, chooser.fewer_are_not_allowed, asked) == (1, False, [3, 1])


def test_all_threads_are_kept_if_nothing_else_is_allowed() -> None:
    chooser = ThreadChooser(2, ONE_FREE, is_allowed=lambda threads: False)
    world = World(chooser, crowded, taken).run(10)
    assert (set(world.used), chooser.fewer_are_not_allowed) == ({2}, True)


def test_reset_forgets_earlier_step_times() -> None:
    chooser = ThreadChooser(2)
    World(chooser, lambda threads, now: 0.001, unknown).run(1)
    chooser.reset()
    assert set(World(chooser, lambda threads, now: 0.05, unknown).run(10).used) == {2}


ADVICE = st.builds(ThreadSuggestion, threads=st.integers(1, 20), free_cores=st.integers(1, 20))


@given(
    max_threads=st.integers(1, 16),
    steps=st.lists(st.tuples(st.floats(1e-5, 1.0), st.none() | ADVICE), max_size=200),
    banned=st.sets(st.integers(1, 16)),
)
def test_any_step_times_give_an_allowed_number(
    max_threads: int, steps: list[tuple[float, ThreadSuggestion | None]], banned: set[int]
) -> None:
    chooser = ThreadChooser(max_threads, is_allowed=lambda threads: threads not in banned)
    for seconds, suggestion in steps:
        chooser.step(seconds, suggestion)
        for threads in (chooser.threads, chooser.chosen):
            assert threads == max_threads or (1 <= threads < max_threads and threads not in banned)
