"""`normscope resume`: continue a run from a checkpoint, or verify that resuming is bitwise exact."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from normscope.cli.options import Flag, OptionalInt, read_arguments
from normscope.cli.training_output import LoggingOptions, train_with_display
from normscope.errors import ConfigError
from normscope.runs.run import Run
from normscope.training.verify_resume import verify_resume


@dataclass(frozen=True)
class Resume:
    """Continue a stopped or killed run from its last checkpoint, bitwise identical to an uninterrupted run."""

    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """Run folder."""

    from_step: OptionalInt = None
    """Resume from this checkpoint instead of the last and drop later ones; 0 is the start."""

    until: OptionalInt = None
    """Save and pause after this step."""

    verify: Flag = False
    """Train copies of the run with and without a kill in between, and compare them bit by bit."""

    logging: LoggingOptions = field(default_factory=LoggingOptions)


def main(arguments: Sequence[str]) -> int:
    command = read_arguments(Resume, "resume", arguments)
    run = Run.open(command.run)
    if command.verify:
        _check_no_unused_options(command)
        result = verify_resume(run, log=print)
        print(result)
        return 0 if result.passed else 1
    steps = run.config.train.steps
    until = steps if command.until is None else command.until
    if command.from_step is None and until >= steps and run.is_done():
        run.checkpoints.load(steps)  # raises if it is damaged
        print(f"{run.folder} is done: all {steps} steps are completed")
        print("to train longer, start a new run with more --steps; to repeat the last part, use --from-step")
        return 0
    return train_with_display(run, command.logging, from_step=command.from_step, until=command.until)


def _check_no_unused_options(command: Resume) -> None:
    """Raise on options that --verify would ignore."""
    given = {
        "--from-step": command.from_step is not None,
        "--until": command.until is not None,
        "--tensorboard": command.logging.tensorboard,
        "--wandb": command.logging.wandb != "off",
    }
    unused = [name for name, is_set in given.items() if is_set]
    if unused:
        raise ConfigError(
            f"--verify trains copies of the run, so {' and '.join(unused)} would have no effect\n"
            f"fix: omit {' and '.join(unused)}"
        )
