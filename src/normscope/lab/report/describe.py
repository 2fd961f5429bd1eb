"""Outcomes in words: an answer's effect and interval, the answer that decides, and what else to say of the runs."""

import math
import re
import sys
from typing import Literal

from normscope.lab.claim import Claim
from normscope.lab.outcome import Outcome
from normscope.lab.statistics import Interval
from normscope.lab.trials.text_sources import STORIES
from normscope.lab.verdict import LOG2_RATIO, Answer, Verdict
from normscope.render.axis_scale import tick_label
from normscope.render.formatting import format_number
from normscope.render.html_page import html_text

Status = Verdict | Literal["withdrawn"]
MARKS: dict[Status, str] = {"supported": "✓", "contradicted": "✗", "inconclusive": "?", "withdrawn": "–"}
WITHDRAWN = "withdrawn, to be redone"
OUTDATED = "older: the claim has changed since; run it again"
ROUNDING = 1e-3
"""A question whose line is no larger asks whether two ways are the same but for rounding."""
BUILT_IN = "the built-in stories"


def prose_html(text: str) -> str:
    """A text as HTML, in which what is between backticks is code.

    >>> prose_html("a < b, as `norm` does")
    'a &lt; b, as <code>norm</code> does'
    """
    return re.sub("`([^`]+)`", r"<code>\1</code>", html_text(text))


def status_of(claim: Claim, outcome: Outcome) -> Status:
    """The verdict, unless it is withdrawn."""
    return "withdrawn" if claim.withdrawn else outcome.verdict


def why_withdrawn(claim: Claim) -> str:
    """The first sentence of the reason, for tables; empty if it is not withdrawn."""
    sentence, more, _ = claim.withdrawn.partition(". ")
    return f"{sentence}." if more else sentence


def describe_status(claim: Claim, outcome: Outcome) -> str:
    """The verdict, and of a claim that has one how much of it holds."""
    return WITHDRAWN if claim.withdrawn else f"{outcome.verdict}, {parts_that_hold(outcome)}"


def parts_that_hold(outcome: Outcome) -> str:
    """How many of a claim's parts are supported: one of nine that does not hold is not the same as nine."""
    hold, parts = sum(answer.verdict == "supported" for answer in outcome.answers), len(outcome.answers)
    return f"{hold} of {parts} {'part holds' if parts == 1 else 'parts hold'}"


def mark_of(claim: Claim, answer: Answer) -> str:
    """The mark of one part; a claim that is withdrawn has none."""
    return "" if claim.withdrawn else MARKS[answer.verdict]


def describe_revision(claim: Claim) -> str:
    """What was changed in its design after a first run; empty if nothing was."""
    if not claim.revised:
        return ""
    then = f" The verdict of the first run was: {claim.first_verdict}." if claim.first_verdict else ""
    return f"Changed after a first run with seeds 0 to 4: {claim.revised}.{then}"


def format_interval(interval: Interval, unit: str = "", ends_are: str = "") -> str:
    """A middle and its ends.

    >>> format_interval(Interval(0.5, 0.25, 0.75), "nats")
    '0.500 (0.250 to 0.750) nats'
    >>> format_interval(Interval(0.5, 0.25, 0.75), ends_are="95%")
    '0.500 (95%: 0.250 to 0.750)'
    >>> format_interval(Interval(2.0, -math.inf, math.inf))
    '2.00 (one seed: no interval)'
    """
    ends = f"{format_number(interval.low)} to {format_number(interval.high)}"
    if ends_are:
        ends = f"{ends_are}: {ends}"
    if math.isinf(interval.low):
        ends = "one seed: no interval"
    return f"{format_number(interval.middle)} ({ends}){f' {unit}' if unit else ''}"


def format_effect(answer: Answer) -> str:
    """What was found, and what the ends of its interval are."""
    ends_are = "every seed" if answer.confidence is None else f"{100 * answer.confidence:.3g}%"
    if answer.unit != LOG2_RATIO:
        return format_interval(answer.interval, answer.unit, ends_are)
    found = answer.interval
    low = found.low if math.isinf(found.low) else _times(found.low)  # of one seed there is none
    return format_interval(Interval(_times(found.middle), low, _times(found.high)), "times", ends_are)


def format_threshold(answer: Answer) -> str:
    """Where the effect has to lie; a line is a round number, and is written as one."""
    if answer.unit == LOG2_RATIO:
        return f"{answer.side} {tick_label(_times(answer.threshold))}"
    return f"{answer.side} {tick_label(answer.threshold)}"


def _times(factors: float) -> float:
    """The ratio that is so many factors of two."""
    return math.inf if factors >= sys.float_info.max_exp else 2.0**factors


def format_answer(answer: Answer) -> str:
    """What was found, and the line that decides."""
    return f"{format_effect(answer)}; the line: {format_threshold(answer)}"


def deciding_answer(outcome: Outcome) -> Answer:
    """Of the answers that are as the verdict, the one that is least where the claim wants it.

    That is the weakest part of a claim that is supported, the strongest evidence against one that is contradicted,
    and what is furthest from support where nothing is decided. What chance plays a part in goes before what holds for
    every seed, and that before a question of rounding, which has room by orders of magnitude or none at all.
    """
    those = [answer for answer in outcome.answers if answer.verdict == outcome.verdict]
    return min(
        those, key=lambda answer: (answer.every_seed, answer.every_seed and answer.threshold <= ROUNDING, _room(answer))
    )


def describe_failed_parts(outcome: Outcome) -> list[str]:
    """On which of its parts the verdict of a claim hangs that does not stand; nothing if it has one part only."""
    if len(outcome.answers) == 1:
        return []
    kinds: dict[str, Verdict] = {"Does not hold": "contradicted", "Open": "inconclusive"}
    those = {words: [one.text for one in outcome.answers if one.verdict == kind] for words, kind in kinds.items()}
    return [f"{words}: {'; '.join(texts)}." for words, texts in those.items() if texts]


def _room(answer: Answer) -> float:
    """How far the effect lies on the claim's side of the line, below zero on the other.

    It is a share of the interval's half width, in which chance is measured. Of what has to hold for every seed the
    worst seed counts, as a share of the line.
    """
    interval, sign = answer.interval, 1 if answer.side == "above" else -1
    if answer.every_seed:
        worst = interval.low if answer.side == "above" else interval.high
        return sign * (worst - answer.threshold) / (abs(answer.threshold) or 1.0)
    distance = sign * (interval.middle - answer.threshold)
    half = interval.width / 2
    return distance / max(half, sys.float_info.min)


def format_seeds(outcome: Outcome) -> str:
    """Which seeds it is judged by; they follow each other."""
    first, *_, last = (outcome.runs.seeds[0], *outcome.runs.seeds)
    return f"seed {first}" if first == last else f"seeds {first} to {last}"


def describe_text(outcome: Outcome) -> str:
    """What was learnt from, where it was a text: empty otherwise."""
    texts = [settings["text"] for settings in outcome.settings.values() if "text" in settings]
    if not texts:
        return ""
    text = texts[0]
    return BUILT_IN if text == STORIES else f"{text['name']} (sha256 {text['sha256'][:12]})"
