"""Outcomes in words: an answer's effect and interval, a claim's verdict and why."""

import math

from normscope.display.words import figure
from normscope.lab.outcome import Outcome
from normscope.lab.statistics import Interval
from normscope.lab.verdict import Answer, Verdict

MARKS: dict[Verdict, str] = {"supported": "✓", "contradicted": "✗", "inconclusive": "?"}


def interval_in_words(interval: Interval, unit: str = "") -> str:
    """A middle and its ends.

    >>> interval_in_words(Interval(0.5, 0.25, 0.75), "nats")
    '0.500 (0.250 to 0.750) nats'
    >>> interval_in_words(Interval(2.0, -math.inf, math.inf))
    '2.00 (one seed: no interval)'
    """
    ends = f"{figure(interval.low)} to {figure(interval.high)}"
    if math.isinf(interval.low):
        ends = "one seed: no interval"
    return f"{figure(interval.middle)} ({ends}){f' {unit}' if unit else ''}"


def answer_in_words(answer: Answer) -> str:
    """What was found, and the line that decides."""
    return f"{interval_in_words(answer.interval, answer.unit)}; the line: {answer.side} {figure(answer.line)}"


def deciding(outcome: Outcome) -> Answer:
    """The answer that decides: the first that is as the verdict, nearest to its line in intervals' widths."""
    those = [answer for answer in outcome.answers if answer.verdict == outcome.verdict]
    return min(those, key=_room)


def _room(answer: Answer) -> float:
    """How far the interval's middle is from the line, as a share of its own half width."""
    interval = answer.interval
    half = interval.width / 2
    distance = abs(interval.middle - answer.line)
    return distance / half if 0 < half < math.inf else (math.inf if half == 0 else 0.0)
