"""A claim's part of the page: what it says, what was found, the pictures, and what that means."""

import json
from pathlib import Path

from normscope.lab.claim import Claim
from normscope.lab.outcome import Outcome, is_outdated, out_option
from normscope.lab.report.charts import charts_of
from normscope.lab.report.describe import (
    MARKS,
    OUTDATED,
    WITHDRAWN,
    describe_failed_parts,
    describe_revision,
    describe_text,
    format_effect,
    format_seeds,
    format_threshold,
    mark_of,
    parts_that_hold,
    prose_html,
    status_of,
)
from normscope.lab.report.forest_plot import common_range, forest_plot
from normscope.lab.report.notices import figures_notice, notices
from normscope.lab.verdict import Answer
from normscope.render.chart import draw_chart
from normscope.render.formatting import format_count, format_number, pluralize
from normscope.render.html_page import html_text


def section(claim: Claim, outcome: Outcome, folder: Path) -> list[str]:
    """HTML of one claim, whose outcome is kept in this folder."""
    charts = charts_of(claim, outcome)
    return [
        f'<section class="claim" id="{html_text(claim.name)}">',
        f"<h2>{claim.number}. {prose_html(claim.statement)}</h2>",
        *_verdict(claim, outcome, folder),
        *(['<div class="grid">', *map(draw_chart, charts), "</div>"] if charts else []),
        *(f'<p class="faint">{html_text(notice)}</p>' for notice in figures_notice(outcome, charts)),
        *_answers(claim, outcome),
        *(f'<p class="mind">{html_text(notice)}</p>' for notice in notices(outcome)),
        *_small_print(claim, outcome),
        *_tuning(outcome),
        *_settings(outcome),
        "</section>",
    ]


def _verdict(claim: Claim, outcome: Outcome, folder: Path) -> list[str]:
    """The verdict and what it means; a meaning is written for the claim as it is now, and so fits no older verdict."""
    kind, remark = status_of(claim, outcome), [claim.remark] if claim.remark else []
    badge = f'<span class="verdict {kind}">{MARKS[kind]} {WITHDRAWN if claim.withdrawn else kind}</span>'
    if claim.withdrawn:
        return [f"<p>{badge} {prose_html(claim.withdrawn)}</p>", *(f"<p>{prose_html(words)}</p>" for words in remark)]
    badge += f" <b>{parts_that_hold(outcome)}.</b>"
    if is_outdated(outcome, claim):
        again = f"normscope lab run {claim.name}{out_option(folder)}"
        return [f"<p>{badge} <b>{OUTDATED}</b>: <code>{html_text(again)}</code></p>"]
    said = [*describe_failed_parts(outcome), *remark]
    return [
        f"<p>{badge} {prose_html(claim.meaning[outcome.verdict])}</p>",
        *(f"<p>{prose_html(words)}</p>" for words in said),
    ]


def _small_print(claim: Claim, outcome: Outcome) -> list[str]:
    texts = describe_text(outcome)
    facts = [
        f"{claim.kind}",
        f"{outcome.budget.name} budget",
        format_seeds(outcome),
        *([f"learnt from {texts}"] if texts else []),
        f"{pluralize(len(outcome.runs.variants), 'variant')}",
        f"{format_number(outcome.seconds)} s of one core",
        f"torch {outcome.torch}",
    ]
    words = {"Source": claim.source}
    if not is_outdated(outcome, claim):
        words |= {"Design": claim.design, "Rule": claim.rule}
    if revision := describe_revision(claim):
        words["History"] = revision
    return [
        *(f'<p class="faint"><b>{about}</b> {prose_html(text)}</p>' for about, text in words.items()),
        f'<p class="faint">{html_text(", ".join(facts))}</p>',
        *(f'<p class="faint printed">{html_text(words)}</p>' for words in (*_rates_in_words(outcome), _rest(claim))),
    ]


def _rates_in_words(outcome: Outcome) -> list[str]:
    """What the table of rates has, for paper, where nothing can be opened."""
    if not outcome.tuned:
        return []
    tried = sorted({lr for losses in outcome.tuned.values() for lr in losses})
    taken = ", ".join(f"{name} {lr:g}" for name, lr in outcome.runs.lrs.items())
    return [f"Learning rates taken: {taken}. Tried: {', '.join(f'{lr:g}' for lr in tried)}."]


def _rest(claim: Claim) -> str:
    return f"Settings of every variant, and what each rate gave: claims/{claim.name}.json"


def _answers(claim: Claim, outcome: Outcome) -> list[str]:
    rows = [
        f"<tr>{_mark(claim, answer)}"
        f"<td>{prose_html(answer.text)}</td>"
        f"<td>{html_text(format_effect(answer))}</td>"
        f"<td>{html_text(format_threshold(answer))}</td>"
        f"<td>{_forest(claim, answer, outcome)}</td></tr>"
        for answer in outcome.answers
    ]
    head = "".join(f"<th>{words}</th>" for words in ("", "what has to hold", "effect", "the line", ""))
    return [
        '<div class="scroll"><table class="answers">',
        f"<thead><tr>{head}</tr></thead>",
        *rows,
        "</table></div>",
    ]


def _mark(claim: Claim, answer: Answer) -> str:
    if claim.withdrawn:
        return "<td></td>"
    return f'<td class="mark {answer.verdict}" title="{answer.verdict}">{mark_of(claim, answer)}</td>'


def _forest(claim: Claim, answer: Answer, outcome: Outcome) -> str:
    """To the scale of those that can share one: rounding errors would not be seen beside what is of size one."""
    alike = [other for other in outcome.answers if (other.unit, other.threshold) == (answer.unit, answer.threshold)]
    low, high = common_range((other.interval, other.threshold) for other in alike)
    return forest_plot(answer.interval, answer.threshold, low, high, "" if claim.withdrawn else answer.verdict)


def _tuning(outcome: Outcome) -> list[str]:
    if not outcome.tuned:
        return []
    lrs = sorted({lr for losses in outcome.tuned.values() for lr in losses})
    head = "".join(f"<th>{words}</th>" for words in ("variant", *(f"{lr:g}" for lr in lrs), "taken"))
    rows = []
    for name, taken in outcome.runs.lrs.items():
        losses = outcome.tuned.get(name, {})  # one that takes the rate of another has tried none
        best = min(losses, key=losses.__getitem__, default=None)
        cells = [f"<b>{format_number(losses[lr])}</b>" if lr == best else format_number(losses.get(lr)) for lr in lrs]
        rows.append(f"<tr>{''.join(f'<td>{cell}</td>' for cell in (html_text(name), *cells, f'{taken:g}'))}</tr>")
    return [
        "<details><summary>Learning rates: what each gave, with other seeds, and which was taken</summary>",
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>{"".join(rows)}</table></div>',
        "</details>",
    ]


def _settings(outcome: Outcome) -> list[str]:
    rows = [
        f"<tr><td>{html_text(name)}</td><td>{_size(outcome, name)}</td><td>{html_text(json.dumps(settings))}</td></tr>"
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
    parameters = outcome.runs.metrics[name][0].get("parameters")
    return "" if parameters is None else html_text(format_count(float(parameters)))
