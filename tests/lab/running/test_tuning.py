"""Tuning of learning rates: interpolation, edges, shared learning rates."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from normscope.errors import ConfigError
from normscope.lab.claim import LRTuning
from normscope.lab.running.tuning import best_lr, best_lr_at_edge, tuned_variants

RATES = (1e-3, 3e-3, 1e-2, 3e-2)


@given(st.floats(math.log(2e-3), math.log(1.5e-2)), st.floats(0.01, 10))
def test_minimum_of_a_parabola_is_found_between_grid_points(lowest: float, curvature: float) -> None:
    losses = {lr: curvature * (math.log(lr) - lowest) ** 2 for lr in RATES}
    steps_off = abs(math.log(best_lr(losses)) - lowest) / math.log(3)
    nearest = min(abs(math.log(lr) - lowest) for lr in RATES) / math.log(3)
    # To its two digits; half way between two rates their rises are so unlike that it stays a little behind.
    assert steps_off < (0.05 if nearest < 0.25 else 0.25)


def test_best_lr_stays_near_the_best_next_to_a_cliff() -> None:
    gentle = best_lr({1e-3: 2.3, 3e-3: 2.1, 1e-2: 2.5})
    cliff = best_lr({1e-3: 2.3, 3e-3: 2.1, 1e-2: 4.1})
    assert 2.1e-3 < cliff <= gentle < 3e-3


@given(st.lists(st.floats(1, 4), min_size=4, max_size=4))
def test_best_lr_is_closest_to_the_best_grid_point(losses: list[float]) -> None:
    found = best_lr(dict(zip(RATES, losses, strict=True)))
    nearest = min(range(4), key=lambda place: abs(math.log(RATES[place] / found)))
    assert losses[nearest] == min(losses)


def test_small_noise_changes_best_lr_little() -> None:
    one = best_lr({1e-3: 2.5, 3e-3: 2.100, 1e-2: 2.101, 3e-2: 2.5})
    other = best_lr({1e-3: 2.5, 3e-3: 2.101, 1e-2: 2.100, 3e-2: 2.5})
    assert 3e-3 < one < other < 1e-2
    assert math.log(other / one) < math.log(3) / 2  # half a step, where the two are a whole one apart


def test_best_lr_at_the_edge_is_not_extrapolated() -> None:
    falling = {lr: 1 - lr for lr in RATES}
    assert best_lr(falling) == RATES[-1]
    assert best_lr_at_edge({"falling": falling, "between": {1e-3: 2.0, 3e-3: 1.0, 1e-2: 2.0}}) == ["falling"]


def test_grid_of_two_is_not_reported_as_edge() -> None:
    assert best_lr_at_edge({"two": {1e-3: 2.0, 1e-2: 1.0}}) == []


def test_equal_losses_give_the_first_lr() -> None:
    assert best_lr({1e-3: 4.0, 3e-3: 4.0, 1e-2: 4.0}) == 1e-3
    assert best_lr({1e-3: 4.0 + 1e-16, 3e-3: 4.0, 1e-2: 4.0}) == 1e-3


def test_shared_learning_rate_is_the_other_variants() -> None:
    tuning = LRTuning(RATES, shared=lambda name: "a" if name == "b" else name)
    assert tuned_variants(["a", "b", "c"], tuning) == ["a", "c"]


@pytest.mark.parametrize("shared", [{"b": "nobody"}, {"b": "c", "c": "a"}])
def test_only_tuned_variants_can_share_their_lr(shared: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="cannot share the learning rate"):
        tuned_variants(["a", "b", "c"], LRTuning(RATES, shared=lambda name: shared.get(name, name)))


@pytest.mark.parametrize("lrs", [(), (1e-2, 1e-3), (1e-3, 1e-3)])
def test_lrs_must_be_increasing(lrs: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError, match="distinct and in increasing order"):
        LRTuning(lrs)
