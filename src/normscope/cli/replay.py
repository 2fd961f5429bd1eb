"""`normscope replay`: see again where a number stopped being finite."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from normscope.cli.options import read_arguments
from normscope.train.guard import replay


@dataclass(frozen=True)
class Replay:
    """Run the batch that gave a number which is not finite once more, and name the module that made it."""

    bundle: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FOLDER")]
    """A folder such as RUN/faults/00000123."""


def main(arguments: Sequence[str]) -> int:
    command = read_arguments(Replay, "replay", arguments)
    fault, facts = replay(command.bundle)
    print(f"then  {facts['error']}")
    print(f"now   {'all numbers are finite' if fault is None else fault}")
    return 0 if fault is None else 1
