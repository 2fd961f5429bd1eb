"""`normscope doctor`: show the machine, what a run would use of it, and the cost of a config."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from normscope.checks import check_positive_number
from normscope.cli.options import OptionalInt, OptionalStr, read_arguments
from normscope.models.presets import preset
from normscope.render.formatting import format_duration
from normscope.runtime.precision import Precision
from normscope.training.config import TrainConfig
from normscope.training.doctor import DoctorRow, describe_choices, describe_machine, measure_cost
from normscope.training.recipes import override, recipe


@dataclass(frozen=True)
class Doctor:
    """Show the hardware, what a run would use and why, and the measured time and memory of a config.

    For example: normscope doctor --depth 8
    """

    recipe: Annotated[str, tyro.conf.arg(metavar="NAME")] = "dial"
    """Recipe: dial or sprint."""

    depth: OptionalInt = None
    """Number of blocks."""

    preset: OptionalStr = None
    """Model preset: nanochat, gpt2 or llama."""

    context: OptionalInt = None
    """Context length in tokens."""

    batch: OptionalInt = None
    """Batch size, in windows of --context tokens."""

    micro_batch: OptionalInt = None
    """Micro-batch size for gradient accumulation: less memory, same result."""

    vocab_size: OptionalInt = None
    """Vocabulary size."""

    device: Annotated[str, tyro.conf.arg(metavar="NAME")] = "auto"
    """cpu, cuda, mps, ..."""

    precision: Precision = "auto"
    """Dtype of matrix products."""

    seconds: Annotated[float, tyro.conf.arg(metavar="X")] = 4.0
    """Duration of the measurement."""


def main(arguments: Sequence[str]) -> None:
    command = read_arguments(Doctor, "doctor", arguments)
    check_positive_number(seconds=command.seconds)
    chosen = override(recipe(command.recipe, command.depth), preset=command.preset, vocab_size=command.vocab_size)
    model = {**chosen.model, "vocab_size": chosen.vocab_size}
    train = {
        **chosen.train,
        "device": command.device,
        "precision": command.precision,
        "micro_batch": command.micro_batch,
    }
    if command.context is not None:
        model["context"] = command.context
    if command.batch is not None:
        train["batch"] = command.batch
    model_config, config = preset(chosen.preset, **model), TrainConfig(**train)
    console = Console()
    _print_table(console, "this machine", describe_machine(Path.cwd()))
    with console.status("probing bfloat16"):
        rows = list(describe_choices(config))
    _print_table(console, "a run would use", rows)
    with console.status("timing training steps"):
        cost = measure_cost(model_config, config, command.seconds)
    size = f"{cost.parameters / 1e6:.2f} million parameters: depth {model_config.depth}, width {model_config.width}"
    _print_table(
        console,
        f"this config: {chosen.preset}, {size}",
        [
            DoctorRow(
                "step time", f"{cost.step_seconds * 1e3:.1f} ms", f"{cost.tokens_per_second:,.0f} tokens per second"
            ),
            DoctorRow("total time", format_duration(cost.total_seconds), f"{config.steps} steps, without validation"),
            DoctorRow("memory", f"{cost.memory / 1e6:,.0f} MB", "peak, without the libraries"),
            DoctorRow("checkpoint", f"{cost.checkpoint / 1e6:,.1f} MB", "each; the last two and the best are kept"),
        ],
    )


def _print_table(console: Console, title: str, rows: Iterable[DoctorRow]) -> None:
    """Print a table below its title. A title inside the table would be wrapped to the width of the table."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="cyan", no_wrap=True, min_width=10)
    table.add_column()
    table.add_column(style="dim")
    for row in rows:
        table.add_row(row.name, row.value, row.note)
    console.print(Text(title, style="bold"), table, "")
