"""What `train` and `resume` share: a bar while the text is read, who watches the run, and how it ends."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from normscope.data.reading import Progress
from normscope.train.events import Observer
from normscope.train.loop import train
from normscope.train.observers.display import choose_display
from normscope.train.report.page import write_report
from normscope.train.run import Run

STOPPED = 130  # as a shell says of a command that Ctrl-C ended


@contextmanager
def preparation() -> Iterator[Progress | None]:
    """A bar over the bytes that are read, on a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("reading text"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def watch_and_train(
    run: Run,
    *,
    tensorboard: bool = False,
    wandb: Literal["off", "offline", "online"] = "off",
    from_step: int | None = None,
    until: int | None = None,
) -> int:
    """Train with a display; writes the report in the end, and returns the exit code."""
    observers: list[Observer] = [choose_display(sys.stdout)]
    if tensorboard:
        from normscope.train.observers.tensorboard import TensorBoard

        observers.append(TensorBoard(run.folder / "tensorboard"))
    if wandb != "off":
        from normscope.train.observers.weights_and_biases import WeightsAndBiases

        observers.append(WeightsAndBiases(run.folder, mode=wandb, config=run.config.to_json()))
    reason = train(run, observers, from_step=from_step, until=until)
    write_report(run.folder)
    return STOPPED if reason == "stopped" else 0
