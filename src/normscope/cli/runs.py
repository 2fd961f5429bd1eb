"""`normscope runs`: list the runs in a folder."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from normscope.cli.options import Flag, read_arguments
from normscope.render.formatting import format_bytes, format_count, printable

if TYPE_CHECKING:
    from normscope.runs.list_runs import RunSummary


@dataclass(frozen=True)
class Runs:
    """List the runs in a folder: model, steps, best validation loss, size and date.

    Example: normscope runs --json
    """

    folder: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="[FOLDER]")] = Path("runs")
    """Folder that contains the runs."""

    json: Flag = False
    """Print a JSON array."""


def main(arguments: Sequence[str]) -> None:
    command = read_arguments(Runs, "runs", arguments)
    from normscope.runs.list_runs import list_runs

    runs, errors = list_runs(command.folder)
    for path, error in errors.items():
        print(f"note: skipping {path}: {error}", file=sys.stderr)
    if command.json:
        print(json.dumps([asdict(run) for run in runs], indent=1))
    else:
        print(format_table(runs) if runs else f"No runs in {command.folder}.")


def format_table(summaries: Sequence["RunSummary"]) -> str:
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
