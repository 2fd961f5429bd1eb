"""`normscope import`: write a checkpoint of another tool as a run folder."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from normscope.cli.options import OptionalFolder, Source, read_arguments


@dataclass(frozen=True)
class Import:
    """Import a checkpoint of another tool: write it as a run folder.

    Weights keep the dtype in which they are stored. The run has no training data: sample, chat, xray, draw, diff,
    export and `train --from` work on it, `resume` doesn't. Nothing of the checkpoint is executed.

    Example: normscope import path/to/SmolLM2-135M --out runs/smollm
    """

    source: Source
    """Hugging Face folder, or a checkpoint of another tool (see docs/import.md)."""

    out: OptionalFolder = None
    """Run folder (default: a new folder in runs/)."""


def main(arguments: Sequence[str]) -> None:
    command = read_arguments(Import, "import", arguments)
    from normscope.runs.import_model import import_model

    run = import_model(command.source, command.out, notify=lambda notice: print(f"note: {notice}", file=sys.stderr))
    imported = run.config.imported
    assert imported is not None
    size = f"{run.config.model.parameter_count() / 1e6:,.1f} million parameters"
    print(f"wrote {run.folder} ({imported.format}, {size})")
