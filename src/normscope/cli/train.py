"""`normscope train`: train a GPT on text.

To add a flag, add a field to `TrainConfig` (`normscope.training.config`): its description there is the help.
"""

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

import tyro

from normscope.cli import options as opt
from normscope.errors import ConfigError
from normscope.runtime.launcher import STOPPED
from normscope.runtime.torchrun import is_launched, job_name
from normscope.training.config import FINETUNING, INTERVALS, TrainConfig, WandbMode

LAUNCHING = ("nproc", "max_restarts")


@dataclass(frozen=True)
class DataOptions:
    """Tokenizer and validation split."""

    tokenizer: opt.OptionalStr = None
    """auto (chosen for the text), characters, bytes, bpe, or the path of a tokenizer.json."""

    vocab_size: opt.OptionalInt = None
    """Vocabulary size of bpe (default 2048; auto uses less for a small corpus)."""

    column: opt.Str = "text"
    """Text column of .jsonl and .parquet files."""

    split: Annotated[Literal["random", "tail"] | None, opt.option("{random,tail}")] = None
    """Validation split: random chunks, or the end of the text."""

    val_fraction: opt.OptionalFloat = None
    """Fraction of the text held out for validation (default 0.1, at most 1 MB)."""

    allow_special: opt.Flag = False
    """Parse <|endoftext|> and other special tokens in the text."""


@dataclass(frozen=True)
class ModelSizeOptions:
    """Model size and architecture."""

    width: opt.OptionalInt = None
    """Embedding width."""

    heads: opt.OptionalInt = None
    """Number of attention heads; must divide the width."""

    context: opt.OptionalInt = None
    """Context length in tokens."""

    model: opt.Settings = ()
    """Any other model setting, for example activation=swiglu norm=layer wiring=post."""


@dataclass(frozen=True)
class ModelOptions(ModelSizeOptions):
    """Model architecture. Defaults come from the recipe and --depth."""

    preset: opt.OptionalStr = None
    """Model preset: nanochat, nanochat-2026-07, gpt2 or llama."""


@dataclass(frozen=True)
class LoggingOptions:
    """Output and experiment trackers."""

    quiet: opt.Quiet = False
    """Show no progress and no samples; print only the folder of the run."""

    tensorboard: opt.Flag = False
    """Log to TensorBoard."""

    wandb: Annotated[WandbMode, opt.option()] = "off"
    """Log to Weights & Biases."""


# Every field of TrainConfig is an option. Fields that are not in one of these groups are in OptimizationOptions.
_HARDWARE = ("device", "precision", "compile", "parallel")
_GROUPED = INTERVALS + _HARDWARE + FINETUNING
_OTHERS = [field.name for field in dataclasses.fields(TrainConfig) if field.name not in _GROUPED]
OptimizationOptions = opt.config_options(
    "OptimizationOptions", "Optimizer and learning-rate schedule. Defaults come from the recipe.", TrainConfig, _OTHERS
)
IntervalOptions = opt.config_options(
    "IntervalOptions", "Intervals in steps; 0 means only at the end.", TrainConfig, INTERVALS
)
FinetuningOptions = opt.config_options(
    "FinetuningOptions", "What --from trains: all weights, or a part.", TrainConfig, FINETUNING
)
HardwareOptions = opt.config_options(
    "HardwareOptions", "Device and precision; see also `normscope doctor`.", TrainConfig, _HARDWARE
)


@dataclass(frozen=True)
class LaunchOptions:
    """Processes on this machine. For several machines, use torchrun: torchrun ... -m normscope train ..."""

    nproc: opt.OptionalInt = None
    """Number of processes (ranks). They divide each batch; the result is the same up to rounding."""

    max_restarts: opt.OptionalInt = None
    """Start all processes again, up to N times, if one fails; the run continues from its last checkpoint."""


@dataclass(frozen=True)
class Train:
    """Train a GPT on your text, or on built-in stories if no text is given.

    For example:
      normscope train
      normscope train my.txt
      normscope train books/ notes/*.md --depth 6
      cat log | normscope train -
      normscope train my.txt --from runs/books --lora 8

    Ctrl-C saves a checkpoint and stops; `normscope resume` continues.
    """

    sources: Annotated[tyro.conf.Positional[tuple[str, ...]], opt.option("[TEXT ...]")] = ()
    """Files, folders or glob patterns (.txt .md .py .jsonl .parquet), - for stdin, or one prepared folder."""

    out: opt.OptionalFolder = None
    """Run folder (default: a new folder in runs/)."""

    init_from: opt.InitFrom = None
    """Start from these weights, with their architecture and tokenizer: a run, or a checkpoint of another tool."""

    recipe: opt.OptionalStr = None
    """dial (default): model and training scaled by --depth. sprint: a small, fast character model."""

    depth: opt.OptionalInt = None
    """Number of blocks. Width, heads, learning rates and steps scale with it."""

    prompt: Annotated[str, opt.option("TEXT")] = ""
    """Prompt of the samples drawn during training."""

    data: DataOptions = field(default_factory=DataOptions)
    architecture: ModelOptions = field(default_factory=ModelOptions)
    optimization: OptimizationOptions = field(default_factory=OptimizationOptions)  # type: ignore[valid-type]
    intervals: IntervalOptions = field(default_factory=IntervalOptions)  # type: ignore[valid-type]
    finetuning: FinetuningOptions = field(default_factory=FinetuningOptions)  # type: ignore[valid-type]
    hardware: HardwareOptions = field(default_factory=HardwareOptions)  # type: ignore[valid-type]
    launch: LaunchOptions = field(default_factory=LaunchOptions)
    logging: LoggingOptions = field(default_factory=LoggingOptions)


def main(arguments: Sequence[str]) -> int:
    command = opt.read_arguments(Train, "train", arguments)
    if must_launch(command.launch):
        return launch_command("train", arguments, command.launch)
    from normscope.runtime.ranks import joined_ranks
    from normscope.training.train import train

    given = {name: value for name, value in opt.given(command).items() if name not in LAUNCHING}
    run = train(**{**given, "model": opt.parse_settings(command.architecture.model)})
    if command.logging.quiet and joined_ranks().is_main:
        print(run.folder)  # a folder that exists is not reused, so a script needs its name
    return STOPPED if run.end_reason == "stopped" else 0


def must_launch(options: LaunchOptions) -> bool:
    """Whether this process has to start the ranks; raises if torchrun has started others than the options ask for."""
    if options.nproc is None and options.max_restarts is not None:
        raise ConfigError("--max-restarts is about the processes of --nproc\nfix: --nproc 1 --max-restarts N")
    if job_name() is None and not is_launched():
        return options.nproc is not None
    # The ranks of --nproc see it too, and find what it asks for.
    for name, what, variable in (
        ("nproc", "processes", "WORLD_SIZE"),
        ("max_restarts", "restarts", "TORCHELASTIC_MAX_RESTARTS"),
    ):
        wanted, found = getattr(options, name), os.environ.get(variable)
        if wanted is not None and found is not None and wanted != int(found):
            option = opt.option_name(name)
            raise ConfigError(
                f"{option} {wanted}, but torchrun is set to {found} {what}\n"
                f"fix: omit {option}, or omit torchrun if all processes are on this machine"
            )
    return False


def launch_command(name: str, arguments: Sequence[str], options: LaunchOptions) -> int:
    """Start the ranks of a command, with the same arguments."""
    from normscope.runtime.launcher import launch

    assert options.nproc is not None
    return launch([name, *arguments], options.nproc, options.max_restarts or 0)
