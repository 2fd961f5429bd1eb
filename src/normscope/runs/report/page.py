"""report.html: the self-contained report of a run."""

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from markupsafe import Markup

from normscope.checks import as_path
from normscope.models.summary import describe_model
from normscope.render.chart import Chart, ChartLine, draw_chart
from normscope.render.curves import drops_early, smooth
from normscope.render.formatting import format_count, format_duration
from normscope.render.pages import render_page
from normscope.runs.events import END_REASONS
from normscope.runs.report.run_record import RunRecord, number, read_run_record
from normscope.storage.safe_folder import SafeFolder
from normscope.training.config import LEARNING_RATES

WIDTH, HEIGHT = 1000, 330
MAX_SIGNALS = 6


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
    device, ranks = (info.get(name, "") if isinstance(info, Mapping) else "" for name in ("device", "ranks"))
    words = f"{step} of {'?' if record.steps is None else record.steps} steps in {format_duration(record.seconds)}"
    words += f"{f' on {device}' if device else ''}{f' by {ranks} ranks' if ranks else ''}, including validation"
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


def loss_chart(record: RunRecord) -> Chart:
    """Training loss (raw and smoothed), validation loss, and the floor."""
    raw = record.curve("step", "loss")
    smoothed = smooth(raw)
    lines = [
        ChartLine("training, each step", raw, "a", opacity=0.3, clip_outliers=True),
        ChartLine("training, smoothed", smoothed, "a"),
        ChartLine("validation", record.curve("validation", "loss"), "b", dots=True),
    ]
    levels = [] if record.floor_nats is None else [(f"floor {record.floor_nats:.3f}", record.floor_nats)]
    chart = Chart("Loss", "step", "nats per token", [line for line in lines if line.points], reference_lines=levels)
    return replace(chart, log_x=drops_early(smoothed), width=WIDTH, height=HEIGHT)


def bits_chart(record: RunRecord) -> Chart:
    levels = [] if record.floor is None else [(f"floor {record.floor:.3f}", record.floor)]
    lines = [ChartLine("validation", record.curve("validation", "bits_per_byte"), "b", dots=True)]
    return Chart("Bits per byte of the validation text", "step", "bits per byte", lines, reference_lines=levels)


def small_charts(record: RunRecord) -> list[Chart]:
    """Gradient norm, learning rate and speed per step."""
    norms = record.curve("step", "grad_norm")
    smoothed = [
        ChartLine("each step", norms, "c", opacity=0.3, clip_outliers=True),
        ChartLine("smoothed", smooth(norms), "c"),
    ]
    speed = ChartLine("tokens/s", record.curve("step", "tokens_per_second"), "a", clip_outliers=True)
    return [
        Chart("Gradient norm before clipping", "step", "norm", smoothed, log_y=True),
        Chart("Learning rates", "step", "learning rate", _learning_rates(record), y_from_zero=True),
        Chart("Speed", "step", "tokens per second", [speed], y_from_zero=True),
    ]


def _learning_rates(record: RunRecord) -> list[ChartLine]:
    """Each learning rate of the config times the schedule: events of older runs have only the schedule."""
    schedule, train = record.curve("step", "lr_scale"), record.config.get("train")
    peaks = {name: number(train.get(name)) for name in LEARNING_RATES} if isinstance(train, Mapping) else {}
    return [
        ChartLine(name, [(step, peak * scale) for step, scale in schedule], color)
        for (name, peak), color in zip(peaks.items(), "da", strict=False)
    ]


def signal_charts(record: RunRecord) -> list[Chart]:
    """Activation and gradient RMS per layer: one line for each of a few steps, later ones more opaque."""
    events = _select([event for event in record.kind("signal") if event.get("layers")])
    if not events:
        return []
    layers = [str(layer.get("name", "")).replace("blocks.", "") for layer in events[0]["layers"]]
    kinds = [("rms", "Activation RMS per layer", "a"), ("grad_rms", "Gradient RMS per layer", "b")]
    charts = []
    for name, title, color in kinds:
        lines = [_layer_line(event, name, color, (i + 1) / len(events)) for i, event in enumerate(events)]
        charts.append(Chart(title, "layer", "RMS", lines, categories=layers, log_y=True))
    return charts


def _layer_line(event: Mapping[str, Any], field: str, color: str, strength: float) -> ChartLine:
    points = [(float(i), number(layer.get(field))) for i, layer in enumerate(event["layers"])]
    return ChartLine(f"step {event['step']}", points, color, opacity=0.2 + 0.8 * strength, dots=len(points) < 40)


def _select(events: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The first, the last, and some in between."""
    if len(events) <= MAX_SIGNALS:
        return list(events)
    return [events[round(i * (len(events) - 1) / (MAX_SIGNALS - 1))] for i in range(MAX_SIGNALS)]
