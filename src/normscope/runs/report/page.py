"""report.html: the self-contained report of a run."""

import json
import math
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from normscope.checks import as_path
from normscope.models.summary import describe_model
from normscope.render.chart import draw_chart
from normscope.render.chart_style import CHART_SCRIPT, CHART_STYLE
from normscope.render.formatting import format_count, format_duration
from normscope.render.html_page import html_document, html_text
from normscope.runs.events import END_REASONS
from normscope.runs.report.curves import bits_chart, loss_chart, signal_charts, small_charts
from normscope.runs.report.run_record import RunRecord, number, read_run_record
from normscope.storage.safe_folder import SafeFolder

VISIBLE_SAMPLES = 3
"""Number of newest samples shown; older ones are collapsed."""


def write_report(run_folder: str | Path) -> Path:
    """Write report.html into a run folder; works at any time, also during training.

    Returns:
        The path of the report.
    """
    path = as_path(run_folder, "a run") / "report.html"
    SafeFolder(run_folder).write(path.name, report_html(read_run_record(run_folder)).encode())
    return path


def report_html(record: RunRecord) -> str:
    """Render the report of a run."""
    body = [*_head(record), *_charts(record), *_notices(record), *_samples(record), *_config(record)]
    return html_document(record.name, body, style=_STYLE + CHART_STYLE, script=CHART_SCRIPT)


def _head(record: RunRecord) -> list[str]:
    start, step = record.start, max((event["step"] for event in record.kind("step")), default=0)
    model = record.config.get("model")
    description = [describe_model(model)] if isinstance(model, Mapping) else []
    if "parameters" in start:
        description.append(f"{format_count(start['parameters'])} parameters")
    reason = str(record.end.get("reason", ""))
    state = END_REASONS.get(reason, reason) or "not finished"
    info = start.get("info")
    device = info.get("device", "") if isinstance(info, Mapping) else ""
    when = [
        f"{step} of {start.get('steps', '?')} steps in {format_duration(record.seconds)}"
        f"{f' on {device}' if device else ''}, including validation"
    ]
    when += [f"started {str(start['when']).replace('T', ' ').replace('+00:00', ' UTC')}"] if start.get("when") else []
    return [
        "<header>",
        f"<h1>{html_text(record.name)}</h1>",
        f"<p>{html_text(', '.join(description))}</p>",
        f'<p class="faint">{html_text(", ".join(when))}; {html_text(state)}</p>',
        '<dl class="tiles">',
        *(
            f"<div><dt>{html_text(name)}</dt><dd>{html_text(value)}</dd></div>"
            for name, value in _results(record, step)
        ),
        "</dl>",
        "</header>",
    ]


def _results(record: RunRecord, step: int) -> list[tuple[str, str]]:
    results = []
    if record.best is not None:
        bits = number(record.best.get("bits_per_byte"))
        results.append((f"validation loss, step {record.best['step']}", f"{number(record.best['loss']):.4f}"))
        results.append(("bits per byte", f"{bits:.3f}"))
        if record.floor is not None:
            results.append(("floor (entropy of the text)", f"{record.floor:.3f}"))
            results.append(("above the floor", f"{bits - record.floor:.3f}"))
    tokens = step * number(record.start.get("batch_tokens"))
    results.append(("training tokens", format_count(tokens)))
    speeds = [speed for _, speed in record.curve("step", "tokens_per_second") if math.isfinite(speed)]
    if speeds:
        results.append(("tokens per second (median)", format_count(statistics.median(speeds))))
    return results


def _charts(record: RunRecord) -> list[str]:
    if not record.kind("step"):
        return ["<section><p>No steps yet.</p></section>"]
    small = [*([bits_chart(record)] if record.kind("validation") else []), *small_charts(record)]
    sections = ["<section>", draw_chart(loss_chart(record)), "</section>", '<section class="grid">']
    sections += [*map(draw_chart, small), "</section>"]
    signals = signal_charts(record)
    if signals:
        sections += ["<h2>Signal per layer</h2>", '<section class="grid">']
        sections += [*map(draw_chart, signals), "</section>"]
    return sections


def _notices(record: RunRecord) -> list[str]:
    notices = record.kind("notice")
    if not notices:
        return []
    items = [f'<li class="text">step {event["step"]}: {html_text(event.get("text", ""))}</li>' for event in notices]
    return ["<h2>Notices</h2>", "<ul>", *items, "</ul>"]


def _samples(record: RunRecord) -> list[str]:
    """Samples, newest first."""
    samples = record.kind("sample")[::-1]
    lines = ["<h2>Samples</h2>"] if samples else []
    for i, event in enumerate(samples):
        if i == VISIBLE_SAMPLES:
            lines.append(f"<details><summary>{len(samples) - i} earlier</summary>")
        prompt, text = html_text(event.get("prompt", "")), html_text(event.get("text", ""))
        lines.append(f'<div class="sample"><span class="faint">step {event["step"]}</span>')
        lines.append(f'<p class="text"><span class="faint">{prompt}</span>{text}</p></div>')
    return [*lines, "</details>"] if len(samples) > VISIBLE_SAMPLES else lines


def _config(record: RunRecord) -> list[str]:
    parts = {name: value for name, value in record.config.items() if isinstance(value, Mapping)}
    rest = {name: value for name, value in record.config.items() if name not in parts}
    lines = ["<h2>Config</h2>", '<section class="grid config">']
    for name, settings in {**parts, "run": rest}.items():
        lines.append(f"<table><caption>{html_text(name)}</caption>")
        lines += [
            f'<tr><th scope="row">{html_text(key)}</th><td>{html_text(_json(value))}</td></tr>'
            for key, value in _flat(settings)
        ]
        lines.append("</table>")
    return [*lines, "</section>"]


def _flat(settings: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Flatten nested settings to dotted names.

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


_STYLE = """\
.sample { margin: 0 0 12px; padding: 8px 12px; border: 1px solid var(--edge); border-radius: 8px }
.sample p { margin: 2px 0 0 }
.config { align-items: start; font-size: 13px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 300px), 1fr)) }
"""
