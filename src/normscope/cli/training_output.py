"""Terminal output of `train` and `resume`: progress bar, displays and final samples."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from normscope.cli.generation_options import print_text
from normscope.cli.options import Flag
from normscope.data.readers import Progress
from normscope.generate.text import generate_text
from normscope.runs.events import Observer
from normscope.runs.load_run import load_run
from normscope.runs.run import Run
from normscope.training.loop import train_run
from normscope.training.observers.display import choose_display
from normscope.training.observers.tracker_metrics import import_tracker
from normscope.training.periodic_tasks import SAMPLE_TOKENS

STOPPED = 130  # the exit code of a command stopped by Ctrl-C


@dataclass(frozen=True)
class LoggingOptions:
    """Experiment trackers."""

    tensorboard: Flag = False
    """Log to TensorBoard."""

    wandb: Annotated[Literal["off", "offline", "online"], tyro.conf.arg(help_behavior_hint="")] = "off"
    """Log to Weights & Biases."""

    def check(self) -> None:
        """Raise if a tracker is not installed, before a run is created."""
        if self.tensorboard:
            import_tracker("torch.utils.tensorboard", "tensorboard")
        if self.wandb != "off":
            import_tracker("wandb", "wandb")

    def observers(self, run: Run) -> list[Observer]:
        observers: list[Observer] = [choose_display(sys.stdout)]
        if self.tensorboard:
            from normscope.training.observers.tensorboard import TensorBoard

            run.safe_folder.has("tensorboard")  # raises on a link
            observers.append(TensorBoard(run.folder / "tensorboard"))
        if self.wandb != "off":
            from normscope.training.observers.wandb import WeightsAndBiases

            run.safe_folder.has("wandb")
            observers.append(WeightsAndBiases(run.folder, mode=self.wandb, config=run.config.to_json()))
        return observers


@contextmanager
def progress_bar() -> Iterator[Progress | None]:
    """Show a progress bar of the bytes read, on a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    from normscope.render.console import SafeConsole

    columns = (TextColumn("reading text"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Bar(*columns, console=SafeConsole(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def train_with_display(
    run: Run, logging: LoggingOptions, *, from_step: int | None = None, until: int | None = None
) -> int:
    """Train with a display, show samples at the end, and return the exit code."""
    reason = train_run(run, logging.observers(run), from_step=from_step, until=until)
    if reason == "done":
        _print_samples(run)
    return STOPPED if reason == "stopped" else 0


def _print_samples(run: Run) -> None:
    """Print two samples of the best checkpoint."""
    model, tokenizer = load_run(run.folder)
    texts = generate_text(model, tokenizer, run.config.prompt, samples=2, max_new_tokens=SAMPLE_TOKENS, temperature=0.8)
    for text in texts:
        print()
        print_text(text.prompt + text.text)
