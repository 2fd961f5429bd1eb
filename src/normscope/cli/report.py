"""`normscope report`: write the HTML report of a run."""

from collections.abc import Sequence
from dataclasses import dataclass

from normscope.cli.options import RunFolder, read_arguments


@dataclass(frozen=True)
class Report:
    """Write report.html of a run; works during training too."""

    run: RunFolder
    """Run folder."""


def main(arguments: Sequence[str]) -> None:
    command = read_arguments(Report, "report", arguments)
    from normscope.training.train import report

    print(f"wrote {report(command.run)}")
