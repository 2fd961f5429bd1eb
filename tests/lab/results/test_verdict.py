"""Verdicts from intervals and thresholds."""

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from normscope.lab.results.verdict import Answer, BySeed, Question, Verdict, answer, verdict_of


def loss(runs: BySeed) -> float:
    return float(runs["a"]["loss"])


def seeds(*losses: float) -> list[BySeed]:
    return [{"a": {"loss": value}} for value in losses]


def asked(
    line: float, side: Literal["above", "below"], *losses: float, every_seed: bool = False, questions: int = 1
) -> Answer:
    return answer(Question("the loss", loss, line, side, every_seed=every_seed), seeds(*losses), questions)


@pytest.mark.parametrize(
    ("line", "side", "verdict"),
    [
        (0.5, "above", "supported"),
        (2.0, "below", "supported"),
        (2.0, "above", "contradicted"),
        (0.5, "below", "contradicted"),
        (1.0, "above", "inconclusive"),
        (1.0, "below", "inconclusive"),
    ],
)
def test_side_of_the_threshold_decides(line: float, side: Literal["above", "below"], verdict: Verdict) -> None:
    assert asked(line, side, 0.9, 1.0, 1.1).verdict == verdict


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=8), st.floats(-10, 10))
def test_threshold_inside_the_interval_is_inconclusive(losses: list[float], line: float) -> None:
    found = asked(line, "above", *losses)
    inside = found.interval.low <= line <= found.interval.high
    assert (found.verdict == "inconclusive") == inside


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=8), st.floats(-10, 10))
def test_above_and_below_are_opposites(losses: list[float], line: float) -> None:
    opposite = {"supported": "contradicted", "contradicted": "supported", "inconclusive": "inconclusive"}
    assert asked(line, "below", *losses).verdict == opposite[asked(line, "above", *losses).verdict]


def test_more_questions_widen_intervals_and_can_make_them_inconclusive() -> None:
    alone, among = asked(0.0, "above", 1.0, 1.2, 1.4), asked(0.0, "above", 1.0, 1.2, 1.4, questions=20)
    assert among.interval.width > alone.interval.width
    assert (alone.verdict, among.verdict) == ("supported", "inconclusive")


def test_answer_states_the_confidence_of_its_interval() -> None:
    assert asked(0.0, "above", 1.0, 1.2).confidence == 0.95
    assert asked(0.0, "above", 1.0, 1.2, questions=5).confidence == pytest.approx(0.99)
    assert asked(0.0, "above", 1.0, 1.2, every_seed=True, questions=5).confidence is None


def test_single_seed_contradicts_what_must_hold_for_every_seed() -> None:
    assert asked(1.0, "below", 0.1, 0.2, 0.3, every_seed=True).verdict == "supported"
    assert asked(1.0, "below", 0.1, 0.2, 1.3, every_seed=True).verdict == "contradicted"


def test_single_seed_is_inconclusive_under_seed_noise() -> None:
    assert asked(0.0, "above", 5.0).verdict == "inconclusive"


def test_claim_is_supported_if_all_parts_are_and_contradicted_if_any_is() -> None:
    good, bad, unclear = asked(0, "above", 1, 1.1), asked(0, "below", 1, 1.1), asked(1.05, "above", 1, 1.1)
    assert verdict_of([good, good]) == "supported"
    assert verdict_of([good, unclear]) == "inconclusive"
    assert verdict_of([good, unclear, bad]) == "contradicted"
