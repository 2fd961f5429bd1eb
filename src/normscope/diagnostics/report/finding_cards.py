"""The findings section of the HTML report: a card per kind, with evidence and fix."""

import re
from collections.abc import Mapping, Sequence

from normscope.diagnostics.findings.finding import Finding
from normscope.diagnostics.report.summary import format_evidence, group_by_kind
from normscope.render.formatting import one_line, pluralize
from normscope.render.html_page import html_text

MARKS = {"error": "✗", "warning": "▲", "note": "•"}


def anchor(number: int) -> str:
    """HTML id of the finding with this index."""
    return f"f{number}"


def draw_cards(findings: Sequence[Finding], rows: Mapping[str, str]) -> list[str]:
    """Draw the cards.

    Args:
        findings: the findings.
        rows: HTML id of each module's row, by module name.
    """
    numbers = {id(finding): i for i, finding in enumerate(findings)}
    lines = ["<h2>Findings</h2>"] if findings else []
    for kind in group_by_kind(findings):
        first, others = kind[0], kind[1:]
        severity = html_text(one_line(first.severity))
        lines += [
            f'<article class="card {severity}" id="{anchor(numbers[id(first)])}">',
            f'<h3><span class="badge">{MARKS.get(first.severity, "•")} {severity}</span> '
            f"{markdown_code(first.title)}</h3>",
            f'<p class="where">{_link(first.module, rows)} <span class="faint">{html_text(first.name)}</span></p>',
            *_evidence(first),
        ]
        lines += [f"<p>{markdown_code(first.why)}</p>"] if first.why else []
        lines += _fix(first.fix) if first.fix else []
        if others:
            lines.append(f"<details><summary>{pluralize(len(others), 'other module')}</summary><ul>")
            for other in others:
                lines.append(
                    f'<li id="{anchor(numbers[id(other)])}">{_link(other.module, rows)} {markdown_code(other.title)}'
                )
                lines += [*_evidence(other), "</li>"]
            lines.append("</ul></details>")
        lines.append("</article>")
    return lines


def markdown_code(words: str) -> str:
    """Escape text for HTML, with text in backticks as code.

    >>> markdown_code("use `a<b`, please")
    'use <code>a&lt;b</code>, please'
    """
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html_text(words))


def _fix(fix: str) -> list[str]:
    words, _, code = fix.partition("\n")
    return [
        f'<p class="fix"><b>Fix</b> {markdown_code(words)}</p>',
        *([f"<pre>{html_text(code)}</pre>"] if code else []),
    ]


def _evidence(finding: Finding) -> list[str]:
    pairs = [
        f"<div><dt>{html_text(name)}</dt><dd>{html_text(value)}</dd></div>" for name, value in format_evidence(finding)
    ]
    return ['<dl class="evidence">', *pairs, "</dl>"] if pairs else []


def _link(module: str, rows: Mapping[str, str]) -> str:
    if not module:
        return '<span class="module">the whole model</span>'
    words = f"<code>{html_text(one_line(module))}</code>"
    return f'<a class="module" href="#{rows[module]}">{words}</a>' if module in rows else words
