"""`normscope replay`: reproduce the batch that produced a NaN or Inf."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from normscope.cli.options import OptionalStr, option, read_arguments
from normscope.runtime.precision import Precision


@dataclass(frozen=True)
class Replay:
    """Reproduce the batch that produced a NaN or Inf, and name the first module with a non-finite output."""

    bundle: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FOLDER")]
    """NaN bundle, such as RUN/nan/00000123-batch-122."""

    device: OptionalStr = None
    """Device (default: the run's)."""

    precision: Annotated[Precision | None, option("{auto,float32,bfloat16}")] = None
    """Dtype of matrix products (default: the run's)."""


def main(arguments: Sequence[str]) -> int:
    command = read_arguments(Replay, "replay", arguments)
    from normscope.training.nan_guard import replay

    origin, state = replay(command.bundle, command.device, command.precision)
    print(f"then  {state['error']}")
    print(f"now   {'all values are finite' if origin is None else origin}")
    return 0 if origin is None else 1
