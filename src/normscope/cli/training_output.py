"""What `train` and `resume` share: a bar while the text is read, who watches the run, and how it ends."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from normscope.cli.generation_options import print_text
from normscope.cli.options import Flag
from normscope.data.source_reader import Progress
from normscope.generate.text import generate_text
from normscope.runs.events import Observer
from normscope.runs.load_run import load_run
from normscope.runs.run import Run
from normscope.training.loop import SAMPLE_TOKENS, train_run
from normscope.training.observers.display import choose_display
from normscope.training.observers.tracker_metrics import import_tracker

STOPPED = 130  # as a shell says of a command that Ctrl-C ended


@dataclass(frozen=True)
class Watching:
    """Who else is told how it goes."""

    tensorboard: Flag = False
    """Write for TensorBoard too."""

    wandb: Annotated[Literal["off", "offline", "online"], tyro.conf.arg(help_behavior_hint="")] = "off"
    """Write for Weights & Biases too."""

    def check(self) -> None:
        """Refuse a tracker that is not installed, before a run is made for it."""
        if self.tensorboard:
            import_tracker("torch.utils.tensorboard", "tensorboard")
        if self.wandb != "off":
            import_tracker("wandb", "wandb")

    def observers(self, run: Run) -> list[Observer]:
        found: list[Observer] = [choose_display(sys.stdout)]
        if self.tensorboard:
            from normscope.training.observers.tensorboard import TensorBoard

            run.safe_folder.has("tensorboard")  # refuses a link
            found.append(TensorBoard(run.folder / "tensorboard"))
        if self.wandb != "off":
            from normscope.training.observers.wandb import WeightsAndBiases

            run.safe_folder.has("wandb")
            found.append(WeightsAndBiases(run.folder, mode=self.wandb, config=run.config.to_json()))
        return found


@contextmanager
def preparation() -> Iterator[Progress | None]:
    """A bar over the bytes that are read, on a terminal."""
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


def watch_and_train(run: Run, watching: Watching, *, from_step: int | None = None, until: int | None = None) -> int:
    """Train with a display, show samples at the end, and return the exit code."""
    reason = train_run(run, watching.observers(run), from_step=from_step, until=until)
    if reason == "done":
        _show_samples(run)
    return STOPPED if reason == "stopped" else 0


def _show_samples(run: Run) -> None:
    """What it came to: two texts by the best of the run."""
    model, tokenizer = load_run(run.folder)
    texts = generate_text(model, tokenizer, run.config.prompt, samples=2, max_new_tokens=SAMPLE_TOKENS, temperature=0.8)
    for text in texts:
        print()
        print_text(text.prompt + text.text)
