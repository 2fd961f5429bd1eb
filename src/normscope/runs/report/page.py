"""report.html: the self-contained report of a run."""

import json
import math
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from normscope.checks import as_path
from normscope.models.summary import describe_model
from normscope.render.chart import draw_chart
from normscope.render.formatting import format_count, format_duration
from normscope.render.pages import render_page
from normscope.runs.events import END_REASONS
from normscope.runs.report.curves import bits_chart, loss_chart, signal_charts, small_charts
from normscope.runs.report.run_record import RunRecord, number, read_run_record
from normscope.storage.safe_folder import SafeFolder


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
    step = max((event["step"] for event in record.kind("step")), default=0)
    reason = str(record.end.get("reason", ""))
    charts = [loss_chart(record)] + ([bits_chart(record)] if record.kind("validation") else []) + small_charts(record)
    return render_page(
        "runs/report/run.html",
        title=record.name,
        model=_model(record),
        progress=_progress(record, step),
        state=END_REASONS.get(reason, reason) or "not finished",
        results=_results(record, step),
        charts=[Markup(draw_chart(chart)) for chart in charts] if record.kind("step") else [],
        signal_charts=[Markup(draw_chart(chart)) for chart in signal_charts(record)],
        notices=record.kind("notice"),
        samples=record.kind("sample")[::-1],
        config=_config(record),
    )


def _model(record: RunRecord) -> str:
    model, parameters = record.config.get("model"), record.start.get("parameters")
    described = [describe_model(model)] if isinstance(model, Mapping) else []
    return ", ".join([*described, *([f"{format_count(parameters)} parameters"] if parameters is not None else [])])


def _progress(record: RunRecord, step: int) -> str:
    start, info = record.start, record.start.get("info")
    device = info.get("device", "") if isinstance(info, Mapping) else ""
    words = f"{step} of {start.get('steps', '?')} steps in {format_duration(record.seconds)}"
    words += f"{f' on {device}' if device else ''}, including validation"
    when = str(start.get("when") or "").replace("T", " ").replace("+00:00", " UTC")
    return f"{words}, started {when}" if when else words


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


def _config(record: RunRecord) -> dict[str, list[tuple[str, str]]]:
    """The settings of each part of the config, and those outside a part."""
    parts = {name: value for name, value in record.config.items() if isinstance(value, Mapping)}
    parts["run"] = {name: value for name, value in record.config.items() if name not in parts}
    return {name: [(key, _json(value)) for key, value in _flat(settings)] for name, settings in parts.items()}


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
