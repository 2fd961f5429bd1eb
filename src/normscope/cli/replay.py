"""`normscope replay`: see again where a number stopped being finite."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from normscope.cli.options import OptionalStr, read_arguments
from normscope.runtime.precision import Precision
from normscope.training.nan_guard import replay


@dataclass(frozen=True)
class Replay:
    """Run the batch that gave a number which is not finite once more, and name the module that made it."""

    bundle: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FOLDER")]
    """A folder such as RUN/faults/00000123-batch-122."""

    device: OptionalStr = None
    """Where; on that of the run, unless told otherwise."""

    precision: Annotated[Precision | None, tyro.conf.arg(metavar="{auto,float32,bfloat16}", help_behavior_hint="")] = (
        None
    )
    """Of the products; that of the run, unless told otherwise."""


def main(arguments: Sequence[str]) -> int:
    command = read_arguments(Replay, "replay", arguments)
    fault, facts = replay(command.bundle, command.device, command.precision)
    print(f"then  {facts['error']}")
    print(f"now   {'all numbers are finite' if fault is None else fault}")
    return 0 if fault is None else 1
