"""Outcomes as text: intervals, thresholds, the deciding answer, and what each report section contains."""

import math
import re
import sys
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from markupsafe import Markup, escape

from normscope.lab.claim import Claim
from normscope.lab.results.outcome import Outcome, is_outdated
from normscope.lab.results.statistics import Interval
from normscope.lab.results.verdict import CONFIDENCE, LOG2_RATIO, Answer, Verdict
from normscope.lab.running.tuning import best_lr_at_edge
from normscope.lab.toolkit import OF_EACH
from normscope.lab.trials.text_sources import STORIES
from normscope.render.axis_scale import tick_label
from normscope.render.chart import Chart
from normscope.render.formatting import format_number, pluralize, printable

Status = Verdict | Literal["withdrawn"]
MARKS: dict[Status, str] = {"supported": "✓", "contradicted": "✗", "inconclusive": "?", "withdrawn": "–"}
WITHDRAWN = "withdrawn, to be redone"
OUTDATED = "outdated: the claim has changed since this run; run it again"
ROUNDING = 1e-3
"""A question with a threshold up to this asks for equality up to rounding."""
BUILT_IN = "the built-in stories"


@dataclass(frozen=True)
class ClaimReport:
    """A claim and its outcome, as every report shows them."""

    claim: Claim
    outcome: Outcome

    @cached_property
    def outdated(self) -> bool:
        return is_outdated(self.outcome, self.claim)

    @property
    def status(self) -> Status:
        """The verdict, unless it is withdrawn."""
        return "withdrawn" if self.claim.withdrawn else self.outcome.verdict

    @property
    def mark(self) -> str:
        return MARKS[self.status]

    @property
    def parts(self) -> str:
        """How many of the claim's parts are supported."""
        answers = self.outcome.answers
        hold = sum(answer.verdict == "supported" for answer in answers)
        return f"{hold} of {len(answers)} {'part holds' if len(answers) == 1 else 'parts hold'}"

    @property
    def verdict(self) -> str:
        """The status and, unless it is withdrawn, how many parts hold."""
        return WITHDRAWN if self.claim.withdrawn else f"{self.outcome.verdict}, {self.parts}"

    @property
    def headline(self) -> str:
        """The status in words."""
        return WITHDRAWN if self.claim.withdrawn else self.status

    @cached_property
    def deciding(self) -> Answer:
        """The answer with the outcome's verdict that supports the claim least.

        That is the weakest part of a supported claim, the strongest evidence against a contradicted one, and the part
        furthest from support of an inconclusive one. Answers with seed noise come first, then those that must hold for
        every seed, then equality up to rounding, whose margins span orders of magnitude.
        """
        found = [one for one in self.outcome.answers if one.verdict == self.outcome.verdict]
        return min(found, key=lambda one: (one.every_seed, one.every_seed and one.threshold <= ROUNDING, _margin(one)))

    @property
    def facts(self) -> str:
        """Kind, budget, seeds, text, number of variants, time and version of torch."""
        outcome, text = self.outcome, describe_text(self.outcome)
        facts = [self.claim.kind, f"{outcome.budget.name} budget", format_seeds(outcome)]
        facts += [f"trained on {text}"] if text else []
        facts += [pluralize(len(outcome.runs.variants), "variant"), f"{format_number(outcome.seconds)} s of one core"]
        return ", ".join([*facts, f"torch {outcome.torch}"])

    @property
    def reason_withdrawn(self) -> str:
        """The first sentence of the reason, for tables; empty if the claim is not withdrawn."""
        sentence, more, _ = self.claim.withdrawn.partition(". ")
        return f"{sentence}." if more else sentence

    def mark_of(self, answer: Answer) -> str:
        """The mark of one part; a withdrawn claim has none."""
        return "" if self.claim.withdrawn else MARKS[answer.verdict]

    @cached_property
    def charts(self) -> list[Chart]:
        """The claim's charts; empty if they cannot be drawn from old metrics, for instance of renamed variants."""
        try:
            return list(self.claim.experiment.charts(self.outcome.runs))
        except (LookupError, ArithmeticError, TypeError, ValueError):
            return []

    @property
    def paragraphs(self) -> list[str]:
        """What follows the verdict: its meaning, the parts that fail, the remark. They fit the current claim only."""
        remark = [self.claim.remark] if self.claim.remark else []
        if self.claim.withdrawn:
            return [self.claim.withdrawn, *([] if self.outdated else remark)]
        if self.outdated:
            return []
        return [self.claim.meaning(self.outcome.verdict), *self.failed_parts, *remark]

    @property
    def failed_parts(self) -> list[str]:
        """The parts that are contradicted or inconclusive; empty for a claim of one part."""
        answers = self.outcome.answers if len(self.outcome.answers) > 1 else ()
        labels: dict[str, Verdict] = {"Does not hold": "contradicted", "Open": "inconclusive"}
        parts = {label: [one.text for one in answers if one.verdict == kind] for label, kind in labels.items()}
        return [f"{label}: {'; '.join(texts)}." for label, texts in parts.items() if texts]

    @property
    def details(self) -> dict[str, str]:
        """Source, design, rule and history."""
        found = {"Source": self.claim.source}
        if not self.outdated:
            found |= {"Design": self.claim.design, "Rule": self.claim.rule}
        if self.claim.revised:
            first = self.claim.first_verdict
            verdict = f" The verdict of the first run was: {first}." if first else ""
            found["History"] = f"Changed after a first run with seeds 0 to 4: {self.claim.revised}.{verdict}"
        return found

    @property
    def chart_notices(self) -> list[str]:
        """What has to be said below the charts."""
        if not self.charts:
            return ["The metrics of these runs cannot be drawn by the current claim; run it again."]
        wider = any(one.confidence is not None and one.confidence > CONFIDENCE for one in self.outcome.answers)
        if wider and any(line.interval_label == OF_EACH for chart in self.charts for line in chart.lines):
            return [f"Intervals of single means are at {CONFIDENCE:.0%}; the verdict uses the wider ones below."]
        return []


def notices(outcome: Outcome) -> list[str]:
    """What to know before relying on an outcome."""
    found = []
    counts = {name: sum(bool(run.get("guessing")) for run in runs) for name, runs in outcome.runs.metrics.items()}
    guessing = [f"{count} of {len(outcome.runs.seeds)} with {name}" for name, count in counts.items() if count]
    if guessing:
        found.append(f"Runs no better than a uniform guess, scored as a uniform guess: {', '.join(guessing)}.")
    edge = [f"{name} ({outcome.runs.lrs[name]:g})" for name in best_lr_at_edge(outcome.tuned)]
    if edge:
        found.append(f"Best learning rate at the edge of the grid, a better one may lie beyond: {', '.join(edge)}.")
    return found


def prose_html(text: str) -> Markup:
    """Convert text to HTML, with code in backticks.

    >>> prose_html("a < b, as `norm` does")
    Markup('a &lt; b, as <code>norm</code> does')
    """
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(printable(text)))))


def format_interval(interval: Interval, unit: str = "", label: str = "") -> str:
    """Format an estimate with its interval.

    >>> format_interval(Interval(0.5, 0.25, 0.75), "nats")
    '0.500 (0.250 to 0.750) nats'
    >>> format_interval(Interval(0.5, 0.25, 0.75), label="95%")
    '0.500 (95%: 0.250 to 0.750)'
    >>> format_interval(Interval(2.0, -math.inf, math.inf))
    '2.00 (one seed: no interval)'
    """
    ends = f"{label}: {format_range(interval)}" if label else format_range(interval)
    if math.isinf(interval.low):
        ends = "one seed: no interval"
    return f"{format_number(interval.middle)} ({ends}){f' {unit}' if unit else ''}"


def format_range(interval: Interval) -> str:
    return f"{format_number(interval.low)} to {format_number(interval.high)}"


def format_effect(answer: Answer) -> str:
    """Format the effect with the confidence of its interval."""
    label = "every seed" if answer.confidence is None else f"{100 * answer.confidence:.3g}%"
    if answer.unit != LOG2_RATIO:
        return format_interval(answer.interval, answer.unit, label)
    found = answer.interval
    low = found.low if math.isinf(found.low) else _ratio(found.low)  # infinite for one seed
    return format_interval(Interval(_ratio(found.middle), low, _ratio(found.high)), "times", label)


def format_threshold(answer: Answer) -> str:
    """Format the side and the threshold, a round number."""
    threshold = _ratio(answer.threshold) if answer.unit == LOG2_RATIO else answer.threshold
    return f"{answer.side} {tick_label(threshold)}"


def _ratio(log2: float) -> float:
    return math.inf if log2 >= sys.float_info.max_exp else 2.0**log2


def format_answer(answer: Answer) -> str:
    """Format the effect and the threshold."""
    return f"{format_effect(answer)}; threshold: {format_threshold(answer)}"


def _margin(answer: Answer) -> float:
    """How far the effect lies on the claimed side of the threshold; negative on the other side.

    In units of the interval's half width; if it must hold for every seed, that of the worst seed relative to the
    threshold.
    """
    interval, sign = answer.interval, 1 if answer.side == "above" else -1
    if answer.every_seed:
        worst = interval.low if answer.side == "above" else interval.high
        return sign * (worst - answer.threshold) / (abs(answer.threshold) or 1.0)
    distance = sign * (interval.middle - answer.threshold)
    return distance / max(interval.width / 2, sys.float_info.min)


def format_seeds(outcome: Outcome) -> str:
    """Format the seeds, which are consecutive."""
    first, *_, last = (outcome.runs.seeds[0], *outcome.runs.seeds)
    return f"seed {first}" if first == last else f"seeds {first} to {last}"


def describe_text(outcome: Outcome) -> str:
    """Name the training text; empty if there was none."""
    text = next((settings["text"] for settings in outcome.settings.values() if "text" in settings), None)
    if text is None:
        return ""
    return BUILT_IN if text == STORIES else f"{text['name']} (sha256 {text['sha256'][:12]})"
