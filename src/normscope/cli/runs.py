"""`normscope runs`: list the runs in a folder."""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

import tyro

from normscope.cli.options import Flag, read_arguments
from normscope.errors import ConfigError, NormscopeError
from normscope.render.formatting import format_bytes, format_count, printable
from normscope.runs.events import ValidationEvent
from normscope.runs.lock import is_locked
from normscope.runs.metrics import read_metrics
from normscope.runs.run import Run, is_run


@dataclass(frozen=True)
class Runs:
    """List the runs in a folder: model, steps, best validation loss, size and date.

    Example: normscope runs --json
    """

    folder: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="[FOLDER]")] = Path("runs")
    """Folder that contains the runs."""

    json: Flag = False
    """Print a JSON array."""


@dataclass(frozen=True)
class RunSummary:
    """One line of the list.

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


def main(arguments: Sequence[str]) -> None:
    command = read_arguments(Runs, "runs", arguments)
    if not command.folder.is_dir():
        raise ConfigError(f"no such folder: {command.folder}\nfix: normscope runs FOLDER, or train a model first")
    summaries = list(_summaries(command.folder))
    if command.json:
        print(json.dumps([asdict(summary) for summary in summaries], indent=1))
    elif summaries:
        print(format_table(summaries))
    else:
        print(f"No runs in {command.folder}.")


def summarize(folder: Path) -> RunSummary:
    """Read config and checkpoints of a run; no tensors are loaded."""
    run = Run.open(folder)
    last = run.checkpoints.last()
    files = [path.lstat() for path in folder.rglob("*") if not path.is_dir()]
    done = last == run.config.train.steps
    return RunSummary(
        path=str(folder),
        status="training" if is_locked(folder) else "done" if done else "stopped",
        depth=run.config.model.depth,
        width=run.config.model.width,
        parameters=run.config.model.parameter_count(),
        step=last,
        steps=run.config.train.steps,
        best_loss=_best_loss(run),
        bytes=sum(file.st_size for file in files),
        modified=datetime.fromtimestamp(max(file.st_mtime for file in files)).astimezone().isoformat("T", "seconds"),
    )


def _best_loss(run: Run) -> float | None:
    """The lowest validation loss in metrics.jsonl."""
    events = read_metrics(run.metrics) if run.metrics.exists() else []
    losses = [event["loss"] for event in events if event["kind"] == ValidationEvent.kind and event["loss"] is not None]
    return min(losses, default=None)


def format_table(summaries: Sequence[RunSummary]) -> str:
    """Format the runs as an aligned table."""
    rows = [("RUN", "STATUS", "MODEL", "PARAMETERS", "STEP", "BEST LOSS", "SIZE", "MODIFIED")]
    rows += [
        (
            printable(one.path),
            one.status,
            f"{one.depth} x {one.width}",
            format_count(one.parameters),
            f"{one.step or 0}/{one.steps}",
            "-" if one.best_loss is None else f"{one.best_loss:.4f}",
            format_bytes(one.bytes),
            one.modified[:16].replace("T", " "),
        )
        for one in summaries
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def _summaries(folder: Path) -> Iterator[RunSummary]:
    """The runs directly in the folder, or the folder itself; a damaged run is reported on stderr."""
    folders = [folder] if is_run(folder) else sorted(path for path in folder.iterdir() if is_run(path))
    for path in folders:
        try:
            yield summarize(path)
        except NormscopeError as error:
            print(f"note: skipping {path}: {error}", file=sys.stderr)
