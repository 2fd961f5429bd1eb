"""List the runs in a folder: the function behind `normscope runs`."""

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

from normscope.checks import as_path
from normscope.errors import ConfigError, NormscopeError
from normscope.runs.events import ValidationEvent
from normscope.runs.metrics_file import read_metrics
from normscope.runs.run import Run, is_run
from normscope.storage.lock import is_locked


@dataclass(frozen=True)
class RunSummary:
    """A run, as `list_runs` describes it.

    Args:
        path: the run folder.
        status: "done", "training" (a process holds the lock) or "stopped".
        depth, width, parameters: size of the model.
        step: the last checkpoint; None before the first.
        steps: number of steps of the whole run.
        best_loss: lowest validation loss; None before the first validation.
        bytes: size on disk.
        modified: time of the last change, ISO 8601 with time zone.
    """

    path: str
    status: Literal["done", "training", "stopped"]
    depth: int
    width: int
    parameters: int
    step: int | None
    steps: int
    best_loss: float | None
    bytes: int
    modified: str


def list_runs(folder: str | Path = "runs") -> tuple[list[RunSummary], dict[Path, NormscopeError]]:
    """Describe the runs in a folder, or a single run folder, like `normscope runs`.

    Args:
        folder: Folder that contains the runs.

    Returns:
        The runs, and the errors of damaged ones by folder.
    """
    folder = as_path(folder, "a folder of runs")
    if not folder.is_dir():
        raise ConfigError(f"no such folder: {folder}\nfix: normscope runs FOLDER, or train a model first")
    runs, errors = list[RunSummary](), dict[Path, NormscopeError]()
    for path in [folder] if is_run(folder) else sorted(path for path in folder.iterdir() if is_run(path)):
        try:
            runs.append(summarize(path))
        except NormscopeError as error:
            errors[path] = error
    return runs, errors


def summarize(folder: Path) -> RunSummary:
    """Read config and checkpoints of a run; no tensors are loaded."""
    run = Run.open(folder)
    run.checkpoints.check_metrics(run.metrics)
    last = run.checkpoints.last()
    files = list(_files(folder))
    modified = datetime.fromtimestamp(_last_change(files)).astimezone()
    return RunSummary(
        path=str(folder),
        status="training" if is_locked(folder) else "done" if run.is_done() or run.config.imported else "stopped",
        depth=run.config.model.depth,
        width=run.config.model.width,
        parameters=run.config.model.parameter_count(),
        step=last,
        steps=run.config.train.steps,
        best_loss=_best_loss(run),
        bytes=sum(file.st_size for file in files),
        modified=modified.isoformat("T", "seconds"),
    )


def last_activity(folder: Path) -> float:
    """Time of the last change of any file of a run, in seconds since 1970."""
    return _last_change(_files(folder))


def _last_change(files: Iterable[os.stat_result]) -> float:
    return max((file.st_mtime for file in files), default=0.0)


def _files(folder: Path) -> Iterator[os.stat_result]:
    """The files of a run, which a training process may delete meanwhile."""
    for path, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                yield os.lstat(os.path.join(path, name))


def _best_loss(run: Run) -> float | None:
    """The lowest validation loss in metrics.jsonl."""
    events = read_metrics(run.metrics) if run.metrics.exists() else []
    losses = [event["loss"] for event in events if event["kind"] == ValidationEvent.kind and event["loss"] is not None]
    return min(losses, default=None)
