"""A claim's part of the page: what it says, what was found, the pictures, and what that means."""

import json
import math

from normscope.display.chart import draw_chart
from normscope.display.document import clean
from normscope.display.words import count, figure, many
from normscope.lab.claim import Claim
from normscope.lab.outcome import Outcome
from normscope.lab.report.words import MARKS, interval_in_words
from normscope.lab.tuning import at_the_edge
from normscope.lab.verdict import Answer

FOREST_WIDTH, FOREST_HEIGHT = 180, 18


def section(claim: Claim, outcome: Outcome) -> list[str]:
    """HTML of one claim."""
    facts = [
        f"{claim.kind}",
        f"{outcome.budget.name} budget",
        f"seeds 0 to {len(outcome.runs.seeds) - 1}",
        f"{many(len(outcome.runs.variants), 'variant')}",
        f"{figure(outcome.seconds)} s of one core",
        f"torch {outcome.torch}",
    ]
    return [
        f'<section class="claim" id="{clean(claim.name)}">',
        f"<h2>{claim.number}. {clean(claim.statement)}</h2>",
        f'<p><span class="verdict {outcome.verdict}">{MARKS[outcome.verdict]} {outcome.verdict}</span> '
        f"{clean(claim.meaning[outcome.verdict])}</p>",
        *([f"<p>{clean(claim.remark)}</p>"] if claim.remark else []),
        '<div class="grid">',
        *(draw_chart(chart) for chart in claim.charts(outcome.runs)),
        "</div>",
        *_answers(outcome),
        f'<p class="faint"><b>Source</b> {clean(claim.source)}</p>',
        f'<p class="faint"><b>Design</b> {clean(claim.design)}</p>',
        f'<p class="faint"><b>Rule</b> {clean(claim.rule)}</p>',
        f'<p class="faint">{clean(", ".join(facts))}</p>',
        *_tuning(outcome),
        *_settings(outcome),
        "</section>",
    ]


def _answers(outcome: Outcome) -> list[str]:
    rows = [
        f'<tr><td class="mark {answer.verdict}" title="{answer.verdict}">{MARKS[answer.verdict]}</td>'
        f"<td>{clean(answer.text)}</td>"
        f"<td>{clean(interval_in_words(answer.interval, answer.unit))}</td>"
        f"<td>{_forest(answer, *_range(_alike(answer, outcome)))}</td></tr>"
        for answer in outcome.answers
    ]
    ends = "95%" if len(outcome.answers) == 1 else "95%, all of them together"
    if all(answer.always for answer in outcome.answers):
        ends = "least to greatest of the seeds"
    head = "".join(f"<th>{words}</th>" for words in ("", "what has to hold", f"effect ({ends})", "and the line"))
    return [
        '<div class="scroll"><table class="answers">',
        f"<thead><tr>{head}</tr></thead>",
        *rows,
        "</table></div>",
    ]


def _alike(answer: Answer, outcome: Outcome) -> list[Answer]:
    """Those that can share a scale with an answer: rounding errors would not be seen beside what is of size one."""
    return [other for other in outcome.answers if (other.unit, other.line) == (answer.unit, answer.line)]


def _range(answers: list[Answer]) -> tuple[float, float]:
    """All that the little pictures of these answers have to show."""
    values = [
        value
        for answer in answers
        for value in (answer.interval.low, answer.interval.high, answer.interval.middle, answer.line)
        if math.isfinite(value)
    ]
    low, high = min(values), max(values)
    air = 0.06 * (high - low) or 1.0
    return low - air, high + air


def _forest(answer: Answer, low: float, high: float) -> str:
    """An interval and its line."""

    def place(value: float) -> float:
        return FOREST_WIDTH * min(max((value - low) / (high - low), 0.0), 1.0)

    start, end, middle, line = map(
        place, (answer.interval.low, answer.interval.high, answer.interval.middle, answer.line)
    )
    y = FOREST_HEIGHT / 2
    return (
        f'<svg class="forest {answer.verdict}" viewBox="0 0 {FOREST_WIDTH} {FOREST_HEIGHT}" width="{FOREST_WIDTH}" '
        f'height="{FOREST_HEIGHT}" role="img" aria-label="{clean(interval_in_words(answer.interval))}">'
        f'<path class="cut" d="M{line:.1f} 0V{FOREST_HEIGHT}"/>'
        f'<path class="interval" d="M{start:.1f} {y:g}H{end:.1f}"/>'
        f'<circle cx="{middle:.1f}" cy="{y:g}" r="3.5"/></svg>'
    )


def _tuning(outcome: Outcome) -> list[str]:
    if not outcome.tuned:
        return []
    rates = sorted({rate for losses in outcome.tuned.values() for rate in losses})
    head = "".join(f"<th>{rate:g}</th>" for rate in rates)
    rows = []
    for name, losses in outcome.tuned.items():
        best = outcome.runs.rates[name]
        cells = (
            f"<td>{'<b>' if rate == best else ''}{figure(losses.get(rate))}{'</b>' if rate == best else ''}</td>"
            for rate in rates
        )
        rows.append(f"<tr><td>{clean(name)}</td>{''.join(cells)}</tr>")
    edge = at_the_edge(outcome.tuned, outcome.runs.rates)
    note = (
        f"<p>At the edge of what was tried: {clean(', '.join(edge))}. A better rate may lie beyond.</p>" if edge else ""
    )
    return [
        "<details><summary>Learning rates, tried with other seeds</summary>",
        f'<div class="scroll"><table><thead><tr><th>variant</th>{head}</tr></thead>{"".join(rows)}</table></div>',
        note,
        "</details>",
    ]


def _settings(outcome: Outcome) -> list[str]:
    rows = [
        f"<tr><td>{clean(name)}</td><td>{_size(outcome, name)}</td><td>{clean(json.dumps(settings))}</td></tr>"
        for name, settings in outcome.settings.items()
    ]
    return [
        "<details><summary>Settings of every variant</summary>",
        '<div class="scroll"><table class="settings">'
        "<thead><tr><th>variant</th><th>weights</th><th>settings</th></tr></thead>"
        f"{''.join(rows)}</table></div>",
        "</details>",
    ]


def _size(outcome: Outcome, name: str) -> str:
    parameters = outcome.runs.figures[name][0].get("parameters")
    return "" if parameters is None else clean(count(float(parameters)))
