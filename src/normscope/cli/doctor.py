"""`normscope doctor`: show the machine, what a run would use of it, and the cost of a config."""

import dataclasses
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from normscope.cli import options as opt
from normscope.render.formatting import format_duration
from normscope.training.config import FINETUNING, TrainConfig

if TYPE_CHECKING:
    from rich.console import Console

    from normscope.training.doctor import DoctorReport, DoctorRow

DoctorSettings = opt.config_options(
    "DoctorSettings",
    "Settings of the training.",
    TrainConfig,
    ("batch", "micro_batch", "steps", "device", "precision", *FINETUNING),
)


@dataclass(frozen=True)
class Doctor:
    """Show the hardware, what a run would use and why, and the measured time and memory of a config.

    For example: normscope doctor --depth 8
      normscope doctor --from gpt2/ --lora 8
    """

    init_from: opt.InitFrom = None
    """Measure finetuning this model: a run, or a checkpoint of another tool."""

    recipe: opt.OptionalStr = None
    """Recipe: dial (default) or sprint."""

    depth: opt.OptionalInt = None
    """Number of blocks."""

    preset: opt.OptionalStr = None
    """Model preset: nanochat, nanochat-2026-07, gpt2 or llama."""

    context: opt.OptionalInt = None
    """Context length in tokens."""

    vocab_size: opt.OptionalInt = None
    """Vocabulary size."""

    seconds: opt.Float = 4.0
    """Duration of the measurement."""

    json: opt.Flag = False
    """Print a JSON object."""

    settings: DoctorSettings = field(default_factory=DoctorSettings)  # type: ignore[valid-type]


def main(arguments: Sequence[str]) -> None:
    command = opt.read_arguments(Doctor, "doctor", arguments)
    from rich.console import Console

    from normscope.training.doctor import DoctorRow, doctor

    options = {name: value for name, value in opt.given(command).items() if name != "json"}
    console = Console(stderr=command.json)
    report = doctor(**options, progress=console.status)
    if command.json:
        print(json.dumps(_as_json(report), indent=1))
        return
    _print_table(console, "this machine", report.machine)
    _print_table(console, "a run would use", report.choices)
    model, cost = report.model, report.cost
    size = f"{cost.parameters / 1e6:.2f} million parameters: depth {model.depth}, width {model.width}"
    speed = f"{cost.tokens_per_second:,.0f} tokens per second"
    parts = ", ".join(f"{name} {size / 1e6:,.0f}" for name, size in cost.memory_parts.items())
    if cost.trained != cost.parameters:
        size += f"; {cost.trained / 1e6:.2f} million are trained"
    rows = [
        DoctorRow("step time", f"{cost.step_seconds * 1e3:.1f} ms", speed),
        DoctorRow("total time", format_duration(cost.total_seconds), f"{report.train.steps} steps, without validation"),
        DoctorRow("memory", f"{cost.memory / 1e6:,.0f} MB", f"peak, without the libraries; by formula {parts}"),
        DoctorRow("checkpoint", f"{cost.checkpoint / 1e6:,.1f} MB", "each; the last two and the best are kept"),
    ]
    _print_table(console, f"this config: {report.preset}, {size}", rows)


def _as_json(report: "DoctorReport") -> dict[str, object]:
    from normscope.models.config_json import config_to_json

    return {
        "machine": {row.name: row.value for row in report.machine},
        "choices": {row.name: row.value for row in report.choices},
        "preset": report.preset,
        "model": config_to_json(report.model),
        "train": report.train.to_json(),
        "cost": dataclasses.asdict(report.cost),
    }


def _print_table(console: "Console", title: str, rows: Iterable["DoctorRow"]) -> None:
    """Print a table below its title. A title inside the table would be wrapped to the width of the table."""
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="cyan", no_wrap=True, min_width=10)
    table.add_column()
    table.add_column(style="dim")
    for row in rows:
        table.add_row(row.name, row.value, row.note)
    console.print(Text(title, style="bold"), table, "")
