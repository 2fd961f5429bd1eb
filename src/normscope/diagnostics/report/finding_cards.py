"""The findings on a page: a card for each kind, with its evidence and what to do."""

import re
from collections.abc import Mapping, Sequence

from normscope.diagnostics.findings.base import Finding
from normscope.diagnostics.report.summary import by_kind, evidence
from normscope.render.formatting import one_line, pluralize
from normscope.render.html_page import html_text

MARKS = {"error": "✗", "warning": "▲", "note": "•"}


def anchor(number: int) -> str:
    """Where on the page the finding of this number is told."""
    return f"f{number}"


def draw_cards(findings: Sequence[Finding], rows: Mapping[str, str]) -> list[str]:
    """The cards.

    Args:
        findings: in the order of their numbers.
        rows: where on the page the row of a module is, by the module's name.
    """
    numbers = {id(finding): i for i, finding in enumerate(findings)}
    lines = ["<h2>Findings</h2>"] if findings else []
    for kind in by_kind(findings):
        first, others = kind[0], kind[1:]
        severity = html_text(one_line(first.severity))
        lines += [
            f'<article class="card {severity}" id="{anchor(numbers[id(first)])}">',
            f'<h3><span class="badge">{MARKS.get(first.severity, "•")} {severity}</span> {marked_up(first.title)}</h3>',
            f'<p class="where">{_link(first.module, rows)} <span class="faint">{html_text(first.name)}</span></p>',
            *_evidence(first),
        ]
        lines += [f"<p>{marked_up(first.why)}</p>"] if first.why else []
        lines += _fix(first.fix) if first.fix else []
        if others:
            lines.append(f"<details><summary>{pluralize(len(others), 'more place')}</summary><ul>")
            for other in others:
                lines.append(
                    f'<li id="{anchor(numbers[id(other)])}">{_link(other.module, rows)} {marked_up(other.title)}'
                )
                lines += [*_evidence(other), "</li>"]
            lines.append("</ul></details>")
        lines.append("</article>")
    return lines


def marked_up(words: str) -> str:
    """A text that is safe in HTML, in which what stands between backticks is code.

    >>> marked_up("use `a<b`, please")
    'use <code>a&lt;b</code>, please'
    """
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html_text(words))


def _fix(fix: str) -> list[str]:
    words, _, code = fix.partition("\n")
    return [f'<p class="fix"><b>Fix</b> {marked_up(words)}</p>', *([f"<pre>{html_text(code)}</pre>"] if code else [])]


def _evidence(finding: Finding) -> list[str]:
    pairs = [f"<div><dt>{html_text(name)}</dt><dd>{html_text(value)}</dd></div>" for name, value in evidence(finding)]
    return ['<dl class="evidence">', *pairs, "</dl>"] if pairs else []


def _link(module: str, rows: Mapping[str, str]) -> str:
    if not module:
        return '<span class="module">the model as a whole</span>'
    words = f"<code>{html_text(one_line(module))}</code>"
    return f'<a class="module" href="#{rows[module]}">{words}</a>' if module in rows else words
