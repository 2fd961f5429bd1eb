"""`normscope report`: write the HTML report of a run."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from normscope.cli.options import read_arguments
from normscope.runs.report.page import write_report
from normscope.runs.run import Run


@dataclass(frozen=True)
class Report:
    """Write report.html of a run; works during training too."""

    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """Run folder."""


def main(arguments: Sequence[str]) -> None:
    command = read_arguments(Report, "report", arguments)
    print(f"wrote {write_report(Run.open(command.run).folder)}")
