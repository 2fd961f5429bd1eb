"""`normscope doctor`: what this machine has, what a run would use and why, and what a config costs."""

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
    """What this machine has, what a run would use of it and why, and what a config needs, measured in seconds.

    For instance: normscope doctor --depth 8
    """

    recipe: Annotated[str, tyro.conf.arg(metavar="NAME")] = "dial"
    """dial or sprint."""

    depth: OptionalInt = None
    """How many blocks."""

    preset: OptionalStr = None
    """The GPT: nanochat, gpt2 or llama."""

    context: OptionalInt = None
    """How many tokens the model sees."""

    batch: OptionalInt = None
    """How many windows of text each step learns from."""

    micro_batch: OptionalInt = None
    """How many of them at a time: fewer need less memory and give the same result."""

    vocab_size: OptionalInt = None
    """How many tokens there are."""

    device: Annotated[str, tyro.conf.arg(metavar="NAME")] = "auto"
    """cpu, cuda, mps and so on."""

    precision: Precision = "auto"
    """The type of the products."""

    seconds: Annotated[float, tyro.conf.arg(metavar="X")] = 4.0
    """How long to measure."""


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
    _show(console, "this machine", describe_machine(Path.cwd()))
    with console.status("a probe of bfloat16, in another process"):
        lines = list(describe_choices(config))
    _show(console, "a run would use", lines)
    with console.status("some steps of training"):
        cost = measure_cost(model_config, config, command.seconds)
    size = f"{cost.parameters / 1e6:.2f} million parameters: depth {model_config.depth}, width {model_config.width}"
    _show(
        console,
        f"this config: {chosen.preset}, {size}",
        [
            DoctorRow("a step", f"{cost.step_seconds * 1e3:.1f} ms", f"{cost.tokens_per_second:,.0f} tokens a second"),
            DoctorRow("all steps", format_duration(cost.total_seconds), f"{config.steps} steps, without validation"),
            DoctorRow("memory", f"{cost.memory / 1e6:,.0f} MB", "at the peak, beyond what the libraries take"),
            DoctorRow("checkpoint", f"{cost.checkpoint / 1e6:,.1f} MB", "each; the last two and the best are kept"),
        ],
    )


def _show(console: Console, title: str, rows: Iterable[DoctorRow]) -> None:
    """A table below its title, which is a line of its own: in the table it would be as narrow as that."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="cyan", no_wrap=True, min_width=10)
    table.add_column()
    table.add_column(style="dim")
    for row in rows:
        table.add_row(row.name, row.value, row.note)
    console.print(Text(title, style="bold"), table, "")
