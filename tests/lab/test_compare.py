"""Comparisons: the sentence says what the intervals say, and the time is kept to."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from normscope.errors import ConfigError
from normscope.lab.compare.pacing import FEWEST_STEPS, USED, Pace, steps_for
from normscope.lab.compare.ranking import ranking
from normscope.lab.compare.variants import combinations, leaks_future, refuse_impossible
from normscope.lab.compare.words import sentence
from normscope.lab.runs import Runs


def runs(**losses: list[float]) -> Runs:
    return Runs({name: [{"loss": loss} for loss in values] for name, values in losses.items()}, (0, 1, 2, 3))


CLEAR = runs(b=[2.0, 2.1, 2.2, 2.3], a=[1.0, 1.1, 1.2, 1.3], c=[3.0, 3.1, 3.2, 3.3])
UNCLEAR = runs(a=[2.0, 2.2, 1.9, 2.1], b=[2.1, 2.0, 2.2, 2.0])


def test_the_best_is_first_and_what_differs_is_told_by_how_much() -> None:
    ranked = ranking(CLEAR)
    assert [one.name for one in ranked] == ["a", "b", "c"]
    assert ranked[1].behind is not None
    assert ranked[1].behind.middle == pytest.approx(1.0)
    said = sentence(ranked)
    assert said.startswith("With this budget a is better than b by 1.00 nats a byte (95% 1.00 to 1.00).")
    assert "It is better than c too." in said


def test_what_cannot_be_told_apart_is_said_to_be_so() -> None:
    assert sentence(ranking(UNCLEAR)).startswith("No difference found between ")
    three = runs(a=[2.0, 2.2, 1.9, 2.1], b=[2.1, 2.0, 2.2, 2.0], c=[2.05, 2.1, 2.0, 2.2])
    assert sentence(ranking(three)).startswith("No difference found between a, b and c")


def test_pairs_are_compared_and_not_the_seeds() -> None:
    """The seeds scatter by one, and the difference by nothing: a pair sees what two intervals would not."""
    found = ranking(runs(a=[1.0, 2.0, 3.0, 4.0], b=[1.1, 2.1, 3.1, 4.1001]))
    assert found[1].differs
    assert found[0].loss.high > found[1].loss.low


def test_the_more_are_compared_the_wider_the_intervals() -> None:
    two = runs(a=[1.0, 1.1, 1.2, 1.3], b=[1.3, 1.25, 1.35, 1.7])
    many = Runs({**two.figures, **{f"x{i}": [{"loss": 9.0 + i}] * 4 for i in range(6)}}, (0, 1, 2, 3))
    wide, narrow = (next(one.behind for one in ranking(found) if one.name == "b") for found in (many, two))
    assert wide is not None
    assert narrow is not None
    assert wide.width > 1.5 * narrow.width


@given(
    st.lists(st.builds(Pace, st.floats(0.001, 1.0), st.floats(0.0, 1.0)), min_size=1, max_size=6),
    st.integers(2, 20),
    st.floats(10, 10_000),
    st.integers(1, 8),
)
def test_the_plan_fits_into_the_time(paces: list[Pace], count: int, seconds: float, workers: int) -> None:
    try:
        steps = steps_for(paces, count, seconds, workers)
    except ConfigError as error:
        assert "--minutes" in str(error)  # noqa: PT017
        return
    besides = min(pace.besides for pace in paces)
    work = count * sum(besides + steps * pace.step for pace in paces)
    assert steps >= FEWEST_STEPS
    assert work <= USED * seconds * workers * (1 + 1e-9)


def test_every_combination_is_there_once_with_its_settings() -> None:
    found = combinations({"norm": ["rms", "layer"], "activation": ["gelu", "relu"], "depth": [3]}, {}, "stories")
    expected = [" ".join(pair) for pair in itertools.product(["rms", "layer"], ["gelu", "relu"])]
    assert list(found) == expected
    assert all(settings["model"]["depth"] == 3 for settings in found.values())


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"norm": ["rms"]}, "nothing to compare"),
        ({"norm": ["rms", "rms"]}, "there twice"),
        ({"norm": ["rms", "layer"], "depth": list(range(1, 14))}, "too many"),
    ],
)
def test_what_cannot_be_compared_is_refused(choices: dict[str, list[Any]], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        combinations(choices, {}, "stories")


def test_models_that_cannot_be_are_refused_before_anything_runs() -> None:
    with pytest.raises(ConfigError, match="nonsense"):
        refuse_impossible(combinations({"activation": ["gelu", "nonsense"]}, {}, "stories"))


def test_a_norm_over_the_batch_is_allowed_and_said_to_leak() -> None:
    found = combinations({"norm": ["rms", "batch", "power"]}, {}, "stories")
    refuse_impossible(found)
    assert {name for name, settings in found.items() if leaks_future(settings)} == {"batch"}
