"""The charts of a run report."""

from collections.abc import Mapping, Sequence
from typing import Any

from normscope.render.chart import Chart, ChartLine
from normscope.render.curves import drops_early, smooth
from normscope.runs.report.run_record import RunRecord, number

WIDTH, HEIGHT = 1000, 330
MAX_SIGNALS = 6


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
    return Chart(
        "Loss",
        "step",
        "nats per token",
        [line for line in lines if line.points],
        reference_lines=levels,
        log_x=drops_early(smoothed),
        width=WIDTH,
        height=HEIGHT,
    )


def bits_chart(record: RunRecord) -> Chart:
    levels = [] if record.floor is None else [(f"floor {record.floor:.3f}", record.floor)]
    lines = [ChartLine("validation", record.curve("validation", "bits_per_byte"), "b", dots=True)]
    return Chart("Bits per byte of the validation text", "step", "bits per byte", lines, reference_lines=levels)


def small_charts(record: RunRecord) -> list[Chart]:
    """Gradient norm, learning rate and speed per step."""
    speed = record.curve("step", "tokens_per_second")
    norms = record.curve("step", "grad_norm")
    smoothed = [
        ChartLine("each step", norms, "c", opacity=0.3, clip_outliers=True),
        ChartLine("smoothed", smooth(norms), "c"),
    ]
    return [
        Chart("Gradient norm before clipping", "step", "norm", smoothed, log_y=True),
        Chart(
            "Learning rate",
            "step",
            "fraction of the peak",
            [ChartLine("lr", record.curve("step", "lr_scale"), "d")],
            y_from_zero=True,
        ),
        Chart(
            "Speed",
            "step",
            "tokens per second",
            [ChartLine("tokens/s", speed, "a", clip_outliers=True)],
            y_from_zero=True,
        ),
    ]


def signal_charts(record: RunRecord) -> list[Chart]:
    """Activation and gradient RMS per layer: one line for each of a few steps, later ones more opaque."""
    events = _select([event for event in record.kind("signal") if event.get("layers")])
    if not events:
        return []
    names = [str(layer.get("name", "")).replace("blocks.", "block ") for layer in events[0]["layers"]]
    kinds = [("rms", "Activation RMS per layer", "a"), ("grad_rms", "Gradient RMS per layer", "b")]
    return [
        Chart(
            title,
            "layer",
            "RMS",
            [_layer_line(event, name, color, (i + 1) / len(events)) for i, event in enumerate(events)],
            categories=[name.replace("block ", "") for name in names],
            log_y=True,
        )
        for name, title, color in kinds
    ]


def _layer_line(event: Mapping[str, Any], field: str, color: str, strength: float) -> ChartLine:
    points = [(float(i), number(layer.get(field))) for i, layer in enumerate(event["layers"])]
    return ChartLine(f"step {event['step']}", points, color, opacity=0.2 + 0.8 * strength, dots=len(points) < 40)


def _select(events: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The first, the last, and some in between."""
    if len(events) <= MAX_SIGNALS:
        return list(events)
    return [events[round(i * (len(events) - 1) / (MAX_SIGNALS - 1))] for i in range(MAX_SIGNALS)]
