"""`normscope resume`: continue a run from a checkpoint, or verify that resuming is bitwise exact."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from normscope.cli.options import Flag, OptionalInt, RunFolder, config_options, given, option_name, read_arguments
from normscope.cli.train import LAUNCHING, LaunchOptions, LoggingOptions, launch_command, must_launch
from normscope.errors import ConfigError
from normscope.runtime.launcher import STOPPED
from normscope.runtime.torchrun import is_launched
from normscope.training.config import TrainConfig

SessionOptions = config_options(
    "SessionOptions", "Used instead of the run's own, this time only.", TrainConfig, ("device", "parallel")
)


@dataclass(frozen=True)
class Resume:
    """Continue a stopped or killed run from its last checkpoint, bitwise identical to an uninterrupted run."""

    run: RunFolder
    """Run folder."""

    from_step: OptionalInt = None
    """Resume from this checkpoint instead of the last and drop later ones; 0 is the start."""

    until: OptionalInt = None
    """Save and pause after this step."""

    steps: OptionalInt = None
    """Extend the run to this number of steps, with the learning-rate schedule of the longer run from here on."""

    verify: Flag = False
    """Check that resuming is bitwise exact: train copies with and without an interruption."""

    hardware: SessionOptions = field(default_factory=SessionOptions)  # type: ignore[valid-type]
    launch: LaunchOptions = field(default_factory=LaunchOptions)
    logging: LoggingOptions = field(default_factory=LoggingOptions)


def main(arguments: Sequence[str]) -> int:
    command = read_arguments(Resume, "resume", arguments)
    if command.verify and (must_launch(command.launch) or is_launched()):
        raise ConfigError(
            "--verify trains copies of the run in one process\nfix: omit --nproc, and do not use torchrun"
        )
    if must_launch(command.launch):
        return launch_command("resume", arguments, command.launch)
    from normscope.training.train import open_run
    from normscope.training.verify_resume import verify_resume

    options = {name: value for name, value in given(command).items() if name not in ("run", "verify", *LAUNCHING)}
    run = open_run(command.run)
    if not command.verify:
        return STOPPED if run.resume(**options) == "stopped" else 0
    unused = " and ".join(option_name(name) for name in options if name != "quiet")
    if unused:
        raise ConfigError(f"--verify trains copies of the run, so {unused} would have no effect\nfix: omit {unused}")
    result = verify_resume(run, log=print)
    print(result)
    return 0 if result.passed else 1
