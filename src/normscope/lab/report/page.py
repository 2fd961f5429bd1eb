"""The lab's HTML report: a table of verdicts, then a section per claim, in one self-contained file."""

import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from normscope.lab.claim import Claim
from normscope.lab.report.caveats import caveats
from normscope.lab.report.describe import (
    OUTDATED,
    WITHDRAWN,
    ClaimReport,
    deciding_answer,
    describe_text,
    format_answer,
    format_effect,
    format_seeds,
    format_threshold,
    notices,
    prose_html,
)
from normscope.lab.report.method import METHOD
from normscope.lab.report.tables import common_range, forest_plot, html_table
from normscope.lab.results.outcome import DEFAULT_FOLDER, Outcome, out_option
from normscope.lab.results.verdict import VERDICTS, Answer
from normscope.render.chart import draw_chart
from normscope.render.chart_style import CHART_SCRIPT, CHART_STYLE
from normscope.render.formatting import format_count, format_number, pluralize
from normscope.render.html_page import html_document, html_text

Found = Sequence[tuple[Claim, Outcome]]


def lab_page(found: Found, folder: Path = DEFAULT_FOLDER) -> str:
    """Return the report of outcomes that are stored in this folder."""
    reports = [ClaimReport(claim, outcome) for claim, outcome in found]
    body = [*_header(reports), *_caveats(found), "</header>", _verdicts(reports), *_method()]
    for report in reports:
        body += _section(report, folder)
    return html_document("normscope lab", body, style=CHART_STYLE + lab_style(), script=CHART_SCRIPT)


def lab_style() -> str:
    """CSS of the lab's pages."""
    return files(__package__).joinpath("lab.css").read_text(encoding="utf-8")


def _header(reports: Sequence[ClaimReport]) -> list[str]:
    counted = [one.status if one.claim.withdrawn or not one.outdated else "outdated" for one in reports]
    names = (*VERDICTS, *(name for name in ("withdrawn", "outdated") if name in counted))
    return [
        "<header>",
        "<h1>The lab</h1>",
        "<p>Claims from the literature about norms, initialization and residuals, each tested by a rule that was fixed "
        'before the run: <a href="#method">how verdicts are reached</a>.</p>',
        '<dl class="tiles">',
        *(f'<div class="{name}"><dt>{name}</dt><dd>{counted.count(name)}</dd></div>' for name in names),
        "</dl>",
    ]


def _caveats(found: Found) -> list[str]:
    paragraphs = [f"<p><b>{heading}.</b> {prose_html(text)}</p>" for heading, text in caveats(found).items()]
    return (
        ['<div class="caveat before">', "<h2>Before you rely on this</h2>", *paragraphs, "</div>"] if paragraphs else []
    )


def _method() -> list[str]:
    return [
        '<section class="claim" id="method">',
        "<h2>How verdicts are reached</h2>",
        *_faint(METHOD),
        "</section>",
    ]


def _faint(paragraphs: dict[str, str]) -> list[str]:
    return [f'<p class="faint"><b>{heading}</b> {prose_html(text)}</p>' for heading, text in paragraphs.items()]


def _verdicts(reports: Sequence[ClaimReport]) -> str:
    rows = []
    for report in reports:
        claim, answer = report.claim, deciding_answer(report.outcome)
        below = WITHDRAWN.partition(", ")[2] if claim.withdrawn else report.parts
        decisive = f"{prose_html(answer.text)} <b>{html_text(format_answer(answer))}</b>"
        outdated = f" <b>{OUTDATED}</b>" if report.outdated else ""
        mark = f"{report.mark} <span>{report.status}</span><small>{below}</small>"
        rows.append(
            (
                str(claim.number),
                f'<td class="mark {report.status}">{mark}</td>',
                f'<a href="#{html_text(claim.name)}">{prose_html(claim.statement)}</a>{outdated}',
                prose_html(report.reason_withdrawn) or decisive,
            )
        )
    return html_table(("", "verdict", "claim", "deciding answer"), rows, "verdicts", scroll=False)


def _section(report: ClaimReport, folder: Path) -> list[str]:
    claim, outcome, charts = report.claim, report.outcome, report.charts
    return [
        f'<section class="claim" id="{html_text(claim.name)}">',
        f"<h2>{claim.number}. {prose_html(claim.statement)}</h2>",
        *_verdict(report, folder),
        *(['<div class="grid">', *map(draw_chart, charts), "</div>"] if charts else []),
        *(f'<p class="faint">{html_text(notice)}</p>' for notice in report.chart_notices),
        _answers(report),
        *(f'<p class="caveat">{html_text(notice)}</p>' for notice in notices(outcome)),
        *_faint(report.details),
        f'<p class="faint">{html_text(_facts(report))}</p>',
        *_tuning(outcome),
        *_settings(claim, outcome),
        "</section>",
    ]


def _verdict(report: ClaimReport, folder: Path) -> list[str]:
    claim, kind = report.claim, report.status
    badge = f'<span class="verdict {kind}">{report.mark} {WITHDRAWN if claim.withdrawn else kind}</span>'
    if not claim.withdrawn:
        badge += f" <b>{report.parts}.</b>"
        if report.outdated:
            command = f"normscope lab run {claim.name}{out_option(folder)}"
            return [f"<p>{badge} <b>{OUTDATED}</b>: <code>{html_text(command)}</code></p>"]
    first, *rest = map(prose_html, report.paragraphs)
    return [f"<p>{badge} {first}</p>", *(f"<p>{text}</p>" for text in rest)]


def _facts(report: ClaimReport) -> str:
    outcome, text = report.outcome, describe_text(report.outcome)
    facts = [report.claim.kind, f"{outcome.budget.name} budget", format_seeds(outcome)]
    facts += [f"trained on {text}"] if text else []
    facts += [pluralize(len(outcome.runs.variants), "variant"), f"{format_number(outcome.seconds)} s of one core"]
    return ", ".join([*facts, f"torch {outcome.torch}"])


def _answers(report: ClaimReport) -> str:
    def mark(answer: Answer) -> str:
        if report.claim.withdrawn:
            return ""
        return f'<td class="mark {answer.verdict}" title="{answer.verdict}">{report.mark_of(answer)}</td>'

    rows = [
        (
            mark(answer),
            prose_html(answer.text),
            html_text(format_effect(answer)),
            html_text(format_threshold(answer)),
            _forest_plot(report, answer),
        )
        for answer in report.outcome.answers
    ]
    return html_table(("", "what has to hold", "effect", "threshold", ""), rows, "answers")


def _forest_plot(report: ClaimReport, answer: Answer) -> str:
    """Draw an answer on the common scale of those with the same unit and threshold."""
    same = [one for one in report.outcome.answers if (one.unit, one.threshold) == (answer.unit, answer.threshold)]
    low, high = common_range((one.interval, one.threshold) for one in same)
    css_class = "" if report.claim.withdrawn else answer.verdict
    return forest_plot(answer.interval, answer.threshold, low, high, css_class)


def _tuning(outcome: Outcome) -> list[str]:
    """The learning rates: in words for print, where nothing can be unfolded, and as a table."""
    if not outcome.tuned:
        return []
    lrs = sorted({lr for losses in outcome.tuned.values() for lr in losses})
    used = ", ".join(f"{name} {lr:g}" for name, lr in outcome.runs.lrs.items())
    rows = []
    for name, lr_used in outcome.runs.lrs.items():
        losses = outcome.tuned.get(name, {})  # empty for a shared learning rate
        best = min(losses, key=losses.__getitem__, default=None)
        cells = [f"<b>{format_number(losses[lr])}</b>" if lr == best else format_number(losses.get(lr)) for lr in lrs]
        rows.append((html_text(name), *cells, f"{lr_used:g}"))
    printed = f"Learning rates used: {used}. Tried: {', '.join(f'{lr:g}' for lr in lrs)}."
    return [
        f'<p class="faint printed">{html_text(printed)}</p>',
        "<details><summary>Learning rates: loss by learning rate, from tuning seeds, and the one used</summary>",
        html_table(("variant", *(f"{lr:g}" for lr in lrs), "used"), rows),
        "</details>",
    ]


def _settings(claim: Claim, outcome: Outcome) -> list[str]:
    def parameters(name: str) -> str:
        count = outcome.runs.metrics[name][0].get("parameters")
        return "" if count is None else html_text(format_count(float(count)))

    rows = [(html_text(name), parameters(name), html_text(json.dumps(one))) for name, one in outcome.settings.items()]
    return [
        f'<p class="faint printed">Settings and tuning losses of every variant: claims/{claim.name}.json</p>',
        "<details><summary>Settings of every variant</summary>",
        html_table(("variant", "parameters", "settings"), rows, "settings"),
        "</details>",
    ]
