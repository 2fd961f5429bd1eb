"""The lab's page: a table of verdicts, then a section for each claim. One file, which asks nobody for anything."""

from collections.abc import Sequence

from normscope.display.chart_look import CHART_SCRIPT, CHART_STYLE
from normscope.display.document import clean, document
from normscope.lab.claim import Claim
from normscope.lab.outcome import Outcome
from normscope.lab.report.section import section
from normscope.lab.report.words import MARKS, answer_in_words, deciding
from normscope.lab.verdict import VERDICTS

Found = Sequence[tuple[Claim, Outcome]]


def lab_page(found: Found) -> str:
    """The whole page."""
    body = [*_head(found), *_table(found)]
    for claim, outcome in found:
        body += section(claim, outcome)
    return document("normscope lab", body, style=CHART_STYLE + _STYLE, script=CHART_SCRIPT)


def _head(found: Found) -> list[str]:
    tiles = [(verdict, sum(outcome.verdict == verdict for _, outcome in found)) for verdict in VERDICTS]
    return [
        "<header>",
        "<h1>The lab</h1>",
        "<p>Claims of the field about norms, initialisation and residuals, each put to the test by a rule that was "
        "stated before the run.</p>",
        '<p class="faint">A claim is supported if the interval of every effect lies on its side of the line, '
        "contradicted if one lies on the other, and inconclusive if a line is inside of an interval. Variants are "
        "compared seed by seed, with the same data in the same order. Learning rates are tuned for each variant, by "
        "the same means and with other seeds. Where a claim asks several things, its intervals are wider for it.</p>",
        '<dl class="tiles">',
        *(f'<div class="{name}"><dt>{name}</dt><dd>{number}</dd></div>' for name, number in tiles),
        "</dl>",
        "</header>",
    ]


def _table(found: Found) -> list[str]:
    rows = [
        f"<tr><td>{claim.number}</td>"
        f'<td class="mark {outcome.verdict}">{MARKS[outcome.verdict]} <span>{outcome.verdict}</span></td>'
        f'<td><a href="#{clean(claim.name)}">{clean(claim.statement)}</a></td>'
        f"<td>{clean(answer_in_words(deciding(outcome)))}</td></tr>"
        for claim, outcome in found
    ]
    return [
        '<table class="verdicts">',
        "<thead><tr><th></th><th>verdict</th><th>claim</th><th>the figure that decides</th></tr></thead>",
        *rows,
        "</table>",
    ]


_STYLE = """\
:root { --supported: #1a7f37; --contradicted: #c0392b; --inconclusive: #8a6d00 }
@media (prefers-color-scheme: dark) {
  :root { --supported: #7ee094; --contradicted: #ff8f85; --inconclusive: #e3c65b }
}
.supported { --verdict: var(--supported) } .contradicted { --verdict: var(--contradicted) }
.inconclusive { --verdict: var(--inconclusive) }
.tiles dd, .mark { color: var(--verdict) }
.mark { white-space: nowrap }
.verdict { display: inline-block; padding: 0 8px; margin-right: 6px; border-radius: 10px; color: var(--paper);
  background: var(--verdict); font-weight: 600 }
td { font-family: inherit; font-variant-numeric: tabular-nums }
.verdicts { table-layout: auto }
.verdicts td:first-child { white-space: nowrap; text-align: right }
.verdicts td:nth-child(4) { color: var(--faint); font-size: 13px }
.answers, .scroll table { table-layout: auto }
.answers td:nth-child(3) { white-space: nowrap }
.settings td:last-child { font: 12px ui-monospace, monospace }
.scroll { overflow-x: auto }
.claim { padding-top: 8px; border-top: 1px solid var(--edge); margin-top: 40px }
.claim h2 { margin-top: 12px }
.claim p { max-width: 76ch; margin: 6px 0 }
.claim .grid { margin: 16px 0; grid-template-columns: repeat(auto-fill, minmax(min(100%, 420px), 1fr)) }
.claim .faint { font-size: 13px }
.claim details { font-size: 13px; margin-top: 6px }
.forest { display: block; overflow: visible }
.forest .cut { stroke: var(--faint); stroke-dasharray: 2 2 }
.forest .interval { stroke: var(--verdict); stroke-width: 2.5 }
.forest circle { fill: var(--verdict) }
a { color: inherit }
@media (max-width: 700px) {
  .verdicts thead { display: none }
  .verdicts tr { display: grid; grid-template-columns: 2em 1fr; border-top: 1px solid var(--edge); padding: 6px 0 }
  .verdicts td { border: 0; padding: 0 }
  .verdicts td:nth-child(n + 3) { grid-column: 2 }
  .answers td:nth-child(3) { white-space: normal }
}
@media print {
  @page { margin: 14mm }
  body { max-width: none; padding: 0; font-size: 10px }
  h1 { font-size: 20px } .claim h2 { font-size: 13px; break-after: avoid }
  .claim { break-inside: avoid; margin-top: 18px }
  .claim .grid { grid-template-columns: 1fr 1fr; gap: 8px 16px; margin: 8px 0 }
  .claim .faint, .verdicts td:nth-child(4), .chart .key, .chart figcaption { font-size: 9px }
  .chart svg { min-width: 0 !important }
  tr { break-inside: avoid }
  details, .chart output { display: none }
}
"""
