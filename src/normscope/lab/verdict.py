"""Questions that figures can answer, and the verdict on a claim that asks several.

A question names an effect, a number that every seed gives, and a line. Its answer is an interval: on the claim's side
of the line it is supported, on the other side contradicted; with the line inside of the interval it is inconclusive.
What has to hold for every seed has no chance in it: there the interval is from the least to the greatest, and one seed
on the wrong side contradicts.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from normscope.lab.statistics import Interval, confidence_interval, extremes

Verdict = Literal["supported", "contradicted", "inconclusive"]
VERDICTS: tuple[Verdict, ...] = ("supported", "contradicted", "inconclusive")
Side = Literal["above", "below"]

Metrics = Mapping[str, Any]
"""What a run gave, by name: numbers, truth values, and curves as lists."""

BySeed = Mapping[str, Metrics]
"""The figures of every variant, all with one seed: what is compared had the same data in the same order."""

CONFIDENCE = 0.95
"""Of all the intervals of a claim together."""

LOG2_RATIO = "factors of two"
"""The unit of a ratio's logarithm, whose mean is not the mean of the ratios; readers are shown the ratio that it is."""


@dataclass(frozen=True)
class Question:
    """What the figures are asked.

    Args:
        text: what the claim says, as a sentence that can turn out false.
        effect: a number from the figures of one seed.
        line: what the effect is compared with.
        side: where the effect lies if the claim is right.
        unit: of the effect.
        always: it must hold for every single seed, as an identity does, and not only on average.
    """

    text: str
    effect: Callable[[BySeed], float]
    threshold: float = 0.0
    side: Side = "above"
    unit: str = ""
    every_seed: bool = False


@dataclass(frozen=True)
class Answer:
    """A question's answer.

    Args:
        text, line, side, unit: the question's.
        effects: of each seed.
        interval: of the effect: over chance, or, of what must always hold, from the least to the greatest.
        verdict: on this question.
        always: the question's.
        confidence: of the interval; None if it is from the least to the greatest of the seeds.
    """

    text: str
    threshold: float
    side: Side
    unit: str
    effects: tuple[float, ...]
    interval: Interval
    verdict: Verdict
    every_seed: bool
    confidence: float | None


def count_random(questions: Sequence[Question]) -> int:
    """How many of them chance plays a part in; what holds for every seed needs no room for it."""
    return sum(not question.every_seed for question in questions)


def bonferroni_confidence(questions: int) -> float:
    """What each of so many intervals needs, so that all of them together hold with `CONFIDENCE` (Bonferroni).

    One contradicted part is enough for a claim to fall: with many parts, chance has as many tries to bring it down, and
    the wider intervals make up for that. Support needs no such thing, for it needs every part at once, and a false
    claim has a part that is false by itself. The same intervals are used for both all the same, as is settled before a
    run: that is too careful with support, never too bold.

    >>> bonferroni_confidence(1), bonferroni_confidence(2)
    (0.95, 0.975)
    """
    return 1 - (1 - CONFIDENCE) / questions


def answer(question: Question, runs: Sequence[BySeed], questions: int = 1) -> Answer:
    """Ask the runs of all seeds; `questions` is how many of a claim's are left to chance, of which this may be one."""
    effects = tuple(float(question.effect(by_seed)) for by_seed in runs)
    confidence = None if question.every_seed else bonferroni_confidence(questions)
    interval = extremes(effects) if confidence is None else confidence_interval(effects, confidence)
    decided = _decide(interval, question.threshold, question.side, every_seed=question.every_seed)
    return Answer(
        text=question.text,
        threshold=question.threshold,
        side=question.side,
        unit=question.unit,
        effects=effects,
        interval=interval,
        verdict=decided,
        every_seed=question.every_seed,
        confidence=confidence,
    )


def _decide(interval: Interval, threshold: float, side: Side, *, every_seed: bool) -> Verdict:
    """Where the interval lies. What must always hold has no doubt: one seed against it is enough.

    >>> _decide(Interval(0.2, 0.1, 0.3), 0.0, "above", every_seed=False)
    'supported'
    >>> _decide(Interval(0.2, -0.1, 0.5), 0.0, "above", every_seed=False)
    'inconclusive'
    """
    holds = interval.low > threshold if side == "above" else interval.high < threshold
    if holds:
        return "supported"
    fails = interval.high < threshold if side == "above" else interval.low > threshold
    return "contradicted" if fails or every_seed else "inconclusive"


def verdict_of(answers: Sequence[Answer]) -> Verdict:
    """A claim stands if all of it does, and falls with any of its parts."""
    found = {given.verdict for given in answers}
    if "contradicted" in found:
        return "contradicted"
    return "supported" if found == {"supported"} else "inconclusive"
