"""`normscope resume`: go on with a run, exactly where it was; or prove that this is so."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from normscope.cli.options import Flag, OptionalInt, read_arguments
from normscope.cli.training_output import Watching, watch_and_train
from normscope.errors import ConfigError
from normscope.runs.run import Run
from normscope.training.verify_resume import verify_resume


@dataclass(frozen=True)
class Resume:
    """Go on with a run that was stopped or killed, from its last checkpoint, to the very bits of one that was not."""

    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """The run's folder."""

    from_step: OptionalInt = None
    """Go on from this checkpoint instead of the last; later ones are forgotten. 0 is the beginning."""

    until: OptionalInt = None
    """Pause after this many steps."""

    verify: Flag = False
    """Train some steps straight, and the same ones with a kill in the middle, in copies; and compare every bit."""

    watching: Watching = field(default_factory=Watching)


def main(arguments: Sequence[str]) -> int:
    command = read_arguments(Resume, "resume", arguments)
    run = Run.open(command.run)
    if command.verify:
        _refuse_idle_options(command)
        proof = verify_resume(run, log=print)
        print(proof)
        return 0 if proof.passed else 1
    steps = run.config.train.steps
    until = steps if command.until is None else command.until
    if command.from_step is None and until >= steps and run.is_done():
        run.checkpoints.load(steps)  # refuses what was damaged since
        print(f"{run.folder} is done: it has taken all of its {steps} steps")
        print("to learn more: a new run with more --steps; or --from-step, to go this one's last part again")
        return 0
    return watch_and_train(run, command.watching, from_step=command.from_step, until=command.until)


def _refuse_idle_options(command: Resume) -> None:
    """Refuse what a proof would pass over in silence."""
    given = {
        "--from-step": command.from_step is not None,
        "--until": command.until is not None,
        "--tensorboard": command.watching.tensorboard,
        "--wandb": command.watching.wandb != "off",
    }
    idle = [name for name, there in given.items() if there]
    if idle:
        raise ConfigError(
            f"--verify trains copies of the run, and {' and '.join(idle)} would change nothing\nfix: leave it out"
        )
