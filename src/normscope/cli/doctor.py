"""`normscope doctor`: what this machine has, what a run would use and why, and what a config costs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console
from rich.table import Table

from normscope.models.presets import preset
from normscope.train.config import Precision, TrainConfig
from normscope.train.doctor import Line, choices, machine, measure
from normscope.train.recipes import overridden, recipe


@dataclass(frozen=True)
class Doctor:
    """What this machine has, what a run would use of it and why, and what a config needs, measured in seconds.

    For instance: normscope doctor --depth 8
    """

    recipe: str = "dial"
    depth: int | None = None
    preset: str | None = None
    context: int | None = None
    batch: int | None = None
    vocab_size: int | None = None
    device: str = "auto"
    precision: Precision = "auto"
    seconds: float = 4.0
    """How long to measure."""


def main(arguments: Sequence[str]) -> None:
    command = tyro.cli(Doctor, prog="normscope doctor", args=list(arguments))
    chosen = overridden(recipe(command.recipe, command.depth), preset=command.preset, vocab_size=command.vocab_size)
    model = {**chosen.model, "vocab_size": chosen.vocab_size}
    train = {**chosen.train, "device": command.device, "precision": command.precision}
    if command.context is not None:
        model["context"] = command.context
    if command.batch is not None:
        train["batch"] = command.batch
    model_config, config = preset(chosen.preset, **model), TrainConfig(**train)
    console = Console()
    console.print(_table("this machine", machine(Path.cwd())))
    with console.status("a probe of bfloat16, in another process"):
        lines = list(choices(config))
    console.print(_table("a run would use", lines))
    with console.status("some steps of training"):
        cost = measure(model_config, config, command.seconds)
    size = f"{cost.parameters / 1e6:.2f} million parameters: depth {model_config.depth}, width {model_config.width}"
    console.print(
        _table(
            f"this config: {chosen.preset}, {size}",
            [
                Line("a step", f"{cost.step_seconds * 1e3:.1f} ms", f"{cost.tokens_per_second:,.0f} tokens a second"),
                Line("all steps", _duration(cost.total_seconds), f"{config.steps} steps, without validation"),
                Line("memory", f"{cost.memory / 1e6:,.0f} MB", "at the peak, beyond what the libraries take"),
                Line("checkpoint", f"{cost.checkpoint / 1e6:,.1f} MB", "each; the last two and the best are kept"),
            ],
        )
    )


def _table(title: str, lines: Iterable[Line]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", show_header=False, box=None, pad_edge=False)
    table.add_column(style="cyan", no_wrap=True, min_width=10)
    table.add_column()
    table.add_column(style="dim")
    for line in lines:
        table.add_row(line.about, line.what, line.why)
    return table


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
