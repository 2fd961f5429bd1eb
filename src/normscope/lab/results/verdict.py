"""Questions about metrics, their answers, and the verdict on a claim.

A question names an effect, one number per seed, and a threshold. Its answer is an interval: supported if the interval
lies on the claimed side of the threshold, contradicted if it lies on the other side, inconclusive if it contains the
threshold. Questions that must hold for every seed involve no seed noise: their interval runs from the minimum to the
maximum, and a single seed on the wrong side contradicts.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from normscope.lab.results.statistics import Interval, confidence_interval, extremes

Verdict = Literal["supported", "contradicted", "inconclusive"]
VERDICTS: tuple[Verdict, ...] = ("supported", "contradicted", "inconclusive")
Side = Literal["above", "below"]

Metrics = Mapping[str, Any]
"""What a run measured, by name: numbers, booleans, and curves as lists."""

BySeed = Mapping[str, Metrics]
"""The metrics of every variant for one seed."""

CONFIDENCE = 0.95
"""Joint confidence of all intervals of a claim."""

LOG2_RATIO = "log2 ratio"
"""Unit of log2 of a ratio, whose mean is not the mean of the ratios; reports show the ratio itself."""


@dataclass(frozen=True)
class Question:
    """A question about the metrics of a claim.

    Args:
        text: the claimed outcome, as a sentence that can turn out false.
        effect: the metrics of one seed -> a number.
        threshold: what the effect is compared with.
        side: where the effect lies if the claim holds.
        unit: of the effect.
        every_seed: the claim must hold for every single seed, as an identity does, and not only on average.
    """

    text: str
    effect: Callable[[BySeed], float]
    threshold: float = 0.0
    side: Side = "above"
    unit: str = ""
    every_seed: bool = False


@dataclass(frozen=True)
class Answer:
    """The answer to a question.

    Args:
        text, threshold, side, unit, every_seed: those of the question.
        effects: one per seed.
        interval: of the effect: a confidence interval, or minimum to maximum if `every_seed`.
        verdict: on this question.
        confidence: of the interval; None if it runs from the minimum to the maximum.
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
    """The number of questions whose answer is subject to seed noise."""
    return sum(not question.every_seed for question in questions)


def bonferroni_confidence(questions: int) -> float:
    """Confidence of each interval such that all of them hold jointly with `CONFIDENCE` (Bonferroni correction).

    One contradicted part contradicts a claim, so with many parts seed noise has many chances to do so; wider intervals
    compensate. Support would not need the correction, because it requires every part at once. The same intervals decide
    both, as fixed before the run, which makes support conservative.

    >>> bonferroni_confidence(1), bonferroni_confidence(2)
    (0.95, 0.975)
    """
    return 1 - (1 - CONFIDENCE) / questions


def answer(question: Question, runs: Sequence[BySeed], questions: int = 1) -> Answer:
    """Answer a question from the runs of all seeds; `questions` is the claim's number of questions with seed noise."""
    effects = tuple(float(question.effect(by_seed)) for by_seed in runs)
    confidence = None if question.every_seed else bonferroni_confidence(questions)
    interval = extremes(effects) if confidence is None else confidence_interval(effects, confidence)
    decided = _decide(interval, question.threshold, question.side, every_seed=question.every_seed)
    asked = question.text, question.threshold, question.side, question.unit
    return Answer(*asked, effects, interval, decided, question.every_seed, confidence)


def _decide(interval: Interval, threshold: float, side: Side, *, every_seed: bool) -> Verdict:
    """Compare an interval with a threshold.

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
    """Combine answers: supported if all are, contradicted if any is."""
    found = {given.verdict for given in answers}
    if "contradicted" in found:
        return "contradicted"
    return "supported" if found == {"supported"} else "inconclusive"
