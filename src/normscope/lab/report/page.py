"""The lab's page: a table of verdicts, then a section for each claim. One file, which asks nobody for anything."""

from collections.abc import Sequence
from pathlib import Path

from normscope.lab.claim import Claim
from normscope.lab.outcome import DEFAULT_FOLDER, Outcome, is_outdated
from normscope.lab.report.caveats import caveats
from normscope.lab.report.describe import (
    MARKS,
    OUTDATED,
    WITHDRAWN,
    deciding_answer,
    format_answer,
    parts_that_hold,
    prose_html,
    status_of,
    why_withdrawn,
)
from normscope.lab.report.forest_plot import FOREST_STYLE
from normscope.lab.report.method import METHOD
from normscope.lab.report.section import section
from normscope.lab.verdict import VERDICTS, Answer
from normscope.render.chart_style import CHART_SCRIPT, CHART_STYLE
from normscope.render.html_page import html_document, html_text

Found = Sequence[tuple[Claim, Outcome]]


def lab_page(found: Found, folder: Path = DEFAULT_FOLDER) -> str:
    """The whole page, of outcomes that are kept in this folder."""
    body = [*_head(found), *_table(found), *_method()]
    for claim, outcome in found:
        body += section(claim, outcome, folder)
    return html_document("normscope lab", body, style=CHART_STYLE + FOREST_STYLE + _STYLE, script=CHART_SCRIPT)


def _head(found: Found) -> list[str]:
    standings = [
        status_of(claim, one) if claim.withdrawn or not is_outdated(one, claim) else "older" for claim, one in found
    ]
    names = (*VERDICTS, *(name for name in ("withdrawn", "older") if name in standings))
    tiles = {name: standings.count(name) for name in names}
    return [
        "<header>",
        "<h1>The lab</h1>",
        "<p>Claims of the field about norms, initialization and residuals, each put to the test by a rule that was "
        'stated before the run: <a href="#method">how a verdict comes about</a>.</p>',
        '<dl class="tiles">',
        *(f'<div class="{name}"><dt>{name}</dt><dd>{number}</dd></div>' for name, number in tiles.items()),
        "</dl>",
        *_mind(found),
        "</header>",
    ]


def _mind(found: Found) -> list[str]:
    said = caveats(found)
    if not said:
        return []
    return [
        '<div class="mind before">',
        "<h2>Before you rely on any of it</h2>",
        *(f"<p><b>{about}.</b> {prose_html(words)}</p>" for about, words in said.items()),
        "</div>",
    ]


def _method() -> list[str]:
    return [
        '<section class="claim" id="method">',
        "<h2>How a verdict comes about</h2>",
        *(f'<p class="faint"><b>{about}</b> {prose_html(words)}</p>' for about, words in METHOD.items()),
        "</section>",
    ]


def _table(found: Found) -> list[str]:
    rows = [
        f"<tr><td>{claim.number}</td>"
        f'<td class="mark {status_of(claim, outcome)}">{_standing(claim, outcome)}</td>'
        f'<td><a href="#{html_text(claim.name)}">{prose_html(claim.statement)}</a>'
        f"{f' <b>{OUTDATED}</b>' if is_outdated(outcome, claim) else ''}</td>"
        f"<td>{prose_html(why_withdrawn(claim)) or _decisive(deciding_answer(outcome))}</td></tr>"
        for claim, outcome in found
    ]
    return [
        '<table class="verdicts">',
        "<thead><tr><th></th><th>verdict</th><th>claim</th><th>the figure that decides</th></tr></thead>",
        *rows,
        "</table>",
    ]


def _standing(claim: Claim, outcome: Outcome) -> str:
    """The verdict, and below it how much of the claim holds."""
    kind = status_of(claim, outcome)
    below = WITHDRAWN.partition(", ")[2] if claim.withdrawn else parts_that_hold(outcome)
    return f"{MARKS[kind]} <span>{kind}</span><small>{below}</small>"


def _decisive(answer: Answer) -> str:
    """What was asked and what was found: neither says much without the other."""
    return f"{prose_html(answer.text)} <b>{html_text(format_answer(answer))}</b>"


_STYLE = """\
:root { --supported: #1a7f37; --contradicted: #c0392b; --inconclusive: #8a6d00; --withdrawn: #6b7280 }
@media (prefers-color-scheme: dark) {
  :root { --supported: #7ee094; --contradicted: #ff8f85; --inconclusive: #e3c65b; --withdrawn: #a3abb8 }
}
.supported { --verdict: var(--supported) } .contradicted { --verdict: var(--contradicted) }
.inconclusive { --verdict: var(--inconclusive) } .withdrawn { --verdict: var(--withdrawn) }
.tiles dd, .mark { color: var(--verdict) }
.mark { white-space: nowrap; padding-right: 14px }
.mark small { display: block; color: var(--faint); font-size: 12px }
.before { margin: 20px 0 24px; max-width: 90ch }
.before h2 { margin: 0 0 4px; font-size: 15px } .before p { margin: 4px 0 }
.verdict { display: inline-block; padding: 0 8px; margin-right: 6px; border-radius: 10px; color: var(--paper);
  background: var(--verdict); font-weight: 600 }
td { font-family: inherit; font-variant-numeric: tabular-nums }
.verdicts { table-layout: auto }
.verdicts td:first-child { white-space: nowrap; text-align: right }
.verdicts td:nth-child(4) { width: 38%; color: var(--faint); font-size: 13px }
.verdicts td:nth-child(4) b { display: block; color: var(--ink); font-weight: normal }
.verdicts td, .answers td { overflow-wrap: break-word }
.answers, .scroll table { table-layout: auto }
.answers td:nth-child(3), .answers td:nth-child(4) { white-space: nowrap }
.mind { padding-left: 10px; border-left: 3px solid var(--inconclusive) }
.printed { display: none }
.settings td:last-child { font: 12px ui-monospace, monospace; min-width: 300px }
details th, details td:not(:last-child) { white-space: nowrap }
.scroll { overflow-x: auto }
.claim { padding-top: 8px; border-top: 1px solid var(--edge); margin-top: 40px }
.claim h2 { margin-top: 12px }
.claim p { max-width: 76ch; margin: 6px 0 }
.claim .grid { margin: 16px 0; grid-template-columns: repeat(auto-fill, minmax(min(100%, 420px), 1fr)) }
.claim .faint { font-size: 13px }
.claim details { font-size: 13px; margin-top: 6px }
a { color: inherit; text-decoration-color: var(--faint); text-underline-offset: 3px }
@media screen and (max-width: 700px) {
  .verdicts thead, .answers thead { display: none }
  .verdicts tr, .answers tr { display: grid; grid-template-columns: 2em 1fr; gap: 0 6px; padding: 6px 0;
    border-top: 1px solid var(--edge) }
  .verdicts td, .answers td { border: 0; padding: 0 }
  .verdicts td:nth-child(n + 3), .answers td:nth-child(n + 3) { grid-column: 2; width: auto }
  .answers td:first-child { text-align: right }
  .answers td:nth-child(n + 3) { white-space: normal; color: var(--faint); font-size: 13px }
  .answers td:nth-child(4)::before { content: "the line: " }
}
@media print {
  @page { margin: 14mm }
  body { max-width: none; padding: 0; font-size: 10px }
  h1 { font-size: 20px } .claim h2 { font-size: 13px; break-after: avoid }
  .claim { margin-top: 18px } .claim p { max-width: none }
  .claim .grid { grid-template-columns: 1fr 1fr; gap: 8px 16px; margin: 8px 0 }
  .claim .faint, .verdicts td:nth-child(4), .chart .key, .chart figcaption { font-size: 9px }
  .chart svg { min-width: 0 !important }
  tr, figure, .tiles { break-inside: avoid }
  details, .chart output { display: none } a { text-decoration: none }
  .claim .printed { display: block }
}
"""
