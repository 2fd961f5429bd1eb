"""report.html: one file with everything in it, which asks nobody for anything."""

import base64
import hashlib
import json
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from normscope.files import write_atomically
from normscope.train.observers.lines import REASONS
from normscope.train.observers.model_in_words import model_in_words
from normscope.train.observers.words import count, duration, printable
from normscope.train.report.chart import CHART_SCRIPT, CHART_STYLE, draw_chart
from normscope.train.report.curves import bits_chart, loss_chart, signal_charts, small_charts
from normscope.train.report.record import Record, number, read_record

OPEN_SAMPLES = 3
"""How many of the newest samples are seen at once; the others unfold."""


def write_report(run_folder: str | Path) -> Path:
    """Write report.html into a run's folder, from what is there; at any time, also while the run is going on.

    Returns:
        The path of the report.
    """
    path = Path(run_folder) / "report.html"
    write_atomically(path, report_html(read_record(run_folder)))
    return path


def report_html(record: Record) -> str:
    """The page of a run."""
    # Only the script below may run, whatever a sample holds; and nothing may be fetched.
    fingerprint = base64.b64encode(hashlib.sha256(CHART_SCRIPT.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{fingerprint}'"
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{_clean(record.name)}</title>",
            f"<style>\n{_STYLE}{CHART_STYLE}</style>",
            "</head>",
            "<body>",
            *_head(record),
            *_charts(record),
            *_notices(record),
            *_samples(record),
            *_config(record),
            f"<script>{CHART_SCRIPT}</script>",
            "</body>",
            "</html>",
            "",
        ]
    )


def _head(record: Record) -> list[str]:
    start, step = record.start, max((event["step"] for event in record.kind("step")), default=0)
    model = record.config.get("model")
    words = [model_in_words(model)] if isinstance(model, Mapping) else []
    if "parameters" in start:
        words.append(f"{count(start['parameters'])} parameters")
    reason = str(record.end.get("reason", ""))
    state = REASONS.get(reason, reason) or "not at its end"
    facts = start.get("facts")
    device = facts.get("device", "") if isinstance(facts, Mapping) else ""
    when = [
        f"{step} of {start.get('steps', '?')} steps in {duration(record.seconds)}{f' on {device}' if device else ''}"
    ]
    when += [f"begun {str(start['when']).replace('T', ' ').replace('+00:00', ' UTC')}"] if start.get("when") else []
    return [
        "<header>",
        f"<h1>{_clean(record.name)}</h1>",
        f"<p>{_clean(', '.join(words))}</p>",
        f'<p class="faint">{_clean(", ".join(when))}; {_clean(state)}</p>',
        '<dl class="tiles">',
        *(f"<div><dt>{_clean(name)}</dt><dd>{_clean(value)}</dd></div>" for name, value in _results(record, step)),
        "</dl>",
        "</header>",
    ]


def _results(record: Record, step: int) -> list[tuple[str, str]]:
    results = []
    if record.best is not None:
        bits = number(record.best.get("bits_per_byte"))
        results.append((f"validation loss, step {record.best['step']}", f"{number(record.best['loss']):.4f}"))
        results.append(("bits per byte", f"{bits:.3f}"))
        if record.floor is not None:
            results.append(("the floor: no model can beat it", f"{record.floor:.3f}"))
            results.append(("above the floor", f"{bits - record.floor:.3f}"))
    tokens = step * number(record.start.get("batch_tokens"))
    results.append(("tokens learnt from", count(tokens)))
    if record.seconds:
        results.append(("tokens a second", count(tokens / record.seconds)))
    return results


def _charts(record: Record) -> list[str]:
    if not record.kind("step"):
        return ["<section><p>There are no steps yet.</p></section>"]
    small = [*([bits_chart(record)] if record.kind("validation") else []), *small_charts(record)]
    sections = ["<section>", draw_chart(loss_chart(record)), "</section>", '<section class="grid">']
    sections += [*map(draw_chart, small), "</section>"]
    signals = signal_charts(record)
    if signals:
        sections += ["<h2>The signal through the layers</h2>", '<section class="grid">']
        sections += [*map(draw_chart, signals), "</section>"]
    return sections


def _notices(record: Record) -> list[str]:
    notices = record.kind("notice")
    if not notices:
        return []
    items = [f'<li class="text">step {event["step"]}: {_clean(event.get("text", ""))}</li>' for event in notices]
    return ["<h2>Notices</h2>", "<ul>", *items, "</ul>"]


def _samples(record: Record) -> list[str]:
    """The newest first: it is what the model can do."""
    samples = record.kind("sample")[::-1]
    lines = ["<h2>Samples</h2>"] if samples else []
    for i, event in enumerate(samples):
        if i == OPEN_SAMPLES:
            lines.append(f"<details><summary>{len(samples) - i} earlier</summary>")
        prompt, text = _clean(event.get("prompt", "")), _clean(event.get("text", ""))
        lines.append(f'<div class="sample"><span class="faint">step {event["step"]}</span>')
        lines.append(f'<p class="text"><span class="faint">{prompt}</span>{text}</p></div>')
    return [*lines, "</details>"] if len(samples) > OPEN_SAMPLES else lines


def _config(record: Record) -> list[str]:
    parts = {name: value for name, value in record.config.items() if isinstance(value, Mapping)}
    rest = {name: value for name, value in record.config.items() if name not in parts}
    lines = ["<h2>Config</h2>", '<section class="grid config">']
    for name, settings in {**parts, "run": rest}.items():
        lines.append(f"<table><caption>{_clean(name)}</caption>")
        lines += [
            f'<tr><th scope="row">{_clean(key)}</th><td>{_clean(_json(value))}</td></tr>'
            for key, value in _flat(settings)
        ]
        lines.append("</table>")
    return [*lines, "</section>"]


def _flat(settings: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Settings within settings by their full names: norm.scope.

    >>> _flat({"depth": 2, "norm": {"scope": "... [d]"}})
    [('depth', 2), ('norm.scope', '... [d]')]
    """
    rows: list[tuple[str, Any]] = []
    for name, value in settings.items():
        rows += (
            _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) and value else [(f"{prefix}{name}", value)]
        )
    return rows


def _json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _clean(value: object) -> str:
    """Any value as text that is safe in HTML."""
    return escape(printable(str(value)))


_STYLE = """\
:root { color-scheme: light dark; --paper: #ffffff; --ink: #1f2328; --faint: #59636e; --edge: #d8dee4 }
@media (prefers-color-scheme: dark) {
  :root { --paper: #0d1117; --ink: #e6edf3; --faint: #9198a1; --edge: #30363d }
}
body { max-width: 1040px; margin: 0 auto; padding: 28px 20px 60px; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif }
h1 { margin: 0 0 4px; font-size: 26px }
h2 { margin: 36px 0 10px; font-size: 18px }
header p { margin: 0 0 2px }
.faint { color: var(--faint) }
.tiles { display: flex; flex-wrap: wrap; gap: 10px; margin: 16px 0 24px }
.tiles div { display: flex; flex-direction: column-reverse; justify-content: flex-end; flex: 1 1 130px;
  padding: 8px 12px; border: 1px solid var(--edge); border-radius: 8px }
.tiles dt { color: var(--faint); font-size: 12px }
.tiles dd { margin: 0; font-size: 22px; font-weight: 600; font-variant-numeric: tabular-nums }
section + section { margin-top: 24px }
.grid { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr)); gap: 24px 32px }
.text { white-space: pre-wrap; overflow-wrap: anywhere }
.sample { margin: 0 0 12px; padding: 8px 12px; border: 1px solid var(--edge); border-radius: 8px }
.sample p { margin: 2px 0 0 }
summary { color: var(--faint); margin-bottom: 12px; cursor: pointer }
.config { align-items: start; font-size: 13px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 300px), 1fr)) }
table { border-collapse: collapse; width: 100%; table-layout: fixed }
caption { text-align: left; font-weight: 600; padding-bottom: 4px }
th, td { text-align: left; font-weight: normal; padding: 2px 8px 2px 0; border-top: 1px solid var(--edge);
  vertical-align: top; overflow-wrap: anywhere }
th { color: var(--faint) }
td { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace }
"""
