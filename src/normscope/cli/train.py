"""`normscope train`: train a GPT on text."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from normscope.cli.options import Flag, OptionalFloat, OptionalInt, OptionalStr, read_arguments
from normscope.cli.training_output import LoggingOptions, progress_bar, train_with_display
from normscope.errors import ConfigError
from normscope.runtime.precision import Precision
from normscope.training.config import OnNaN, OptimizerName
from normscope.training.recipes import Recipe, resolve_recipe
from normscope.training.schedule import ScheduleName
from normscope.training.start_run import is_prepared, new_run_folder, start_run


@dataclass(frozen=True)
class DataOptions:
    """Tokenizer and validation split."""

    tokenizer: OptionalStr = None
    """auto (chosen for the text), characters, bytes, bpe, or the path of a tokenizer.json."""

    vocab_size: OptionalInt = None
    """Vocabulary size of bpe (default 2048; auto uses less for a small corpus)."""

    column: Annotated[str, tyro.conf.arg(metavar="NAME")] = "text"
    """Text column of .jsonl and .parquet files."""

    split: Annotated[
        Literal["random", "tail"] | None, tyro.conf.arg(metavar="{random,tail}", help_behavior_hint="")
    ] = None
    """Validation split: random chunks, or the end of the text."""

    val_fraction: OptionalFloat = None
    """Fraction of the text held out for validation (default 0.1, at most 1 MB)."""

    allow_special: Flag = False
    """Parse <|endoftext|> and other special tokens in the text."""


@dataclass(frozen=True)
class ModelSizeOptions:
    """Model size and architecture."""

    width: OptionalInt = None
    """Embedding width."""

    heads: OptionalInt = None
    """Number of attention heads; must divide the width."""

    context: OptionalInt = None
    """Context length in tokens."""

    model: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE ...", help_behavior_hint="")] = ()
    """Any other model setting, for example activation=swiglu norm=layer wiring=post."""


@dataclass(frozen=True)
class ModelOptions(ModelSizeOptions):
    """Model architecture. Defaults come from the recipe and --depth."""

    preset: OptionalStr = None
    """Model preset: nanochat, gpt2 or llama."""


@dataclass(frozen=True)
class OptimizationOptions:
    """Optimizer and learning-rate schedule. Defaults come from the recipe."""

    steps: OptionalInt = None
    """Number of optimizer steps."""

    batch: OptionalInt = None
    """Batch size, in windows of --context tokens."""

    micro_batch: OptionalInt = None
    """Micro-batch size for gradient accumulation: less memory, same result."""

    optimizer: Annotated[OptimizerName | None, tyro.conf.arg(metavar="{muon,adamw}", help_behavior_hint="")] = None
    """muon (Muon for matrices, AdamW for the rest) or adamw."""

    matrix_lr: OptionalFloat = None
    """Learning rate of the matrices."""

    lr: OptionalFloat = None
    """Learning rate of all other parameters."""

    weight_decay: OptionalFloat = None
    """Weight decay of the matrices."""

    momentum: OptionalFloat = None
    """Muon momentum."""

    muon_steps: OptionalInt = None
    """Muon orthogonalization steps, 1 to 5."""

    beta1: OptionalFloat = None
    """AdamW beta1."""

    beta2: OptionalFloat = None
    """AdamW beta2."""

    schedule: Annotated[
        ScheduleName | None, tyro.conf.arg(metavar="{linear,cosine,constant}", help_behavior_hint="")
    ] = None
    """Shape of the learning-rate decay."""

    warmup: OptionalFloat = None
    """Fraction of the steps used for warmup."""

    decay: OptionalFloat = None
    """Fraction of the steps used for the decay."""

    final_lr: OptionalFloat = None
    """Final learning rate, as a fraction of the peak."""

    grad_clip: OptionalFloat = None
    """Clip the global gradient norm to this value (0 disables clipping)."""

    seed: OptionalInt = None
    """Random seed for initialization, data order and the validation split."""

    on_nan: Annotated[OnNaN | None, tyro.conf.arg(metavar="{stop,rollback}", help_behavior_hint="")] = None
    """On a NaN or Inf: stop, or roll back to the last checkpoint and skip the batch."""


@dataclass(frozen=True)
class IntervalOptions:
    """Intervals in steps; 0 means only at the end."""

    eval_every: OptionalInt = None
    """Evaluate on the validation split."""

    sample_every: OptionalInt = None
    """Generate a sample."""

    save_every: OptionalInt = None
    """Save a checkpoint."""

    xray_every: OptionalInt = None
    """Save an x-ray snapshot and report its findings; 0 disables snapshots."""


@dataclass(frozen=True)
class HardwareOptions:
    """Device and precision; see also `normscope doctor`."""

    device: OptionalStr = None
    """cpu, cuda, mps, ...; auto uses an accelerator if there is one."""

    precision: Annotated[Precision | None, tyro.conf.arg(metavar="{auto,float32,bfloat16}", help_behavior_hint="")] = (
        None
    )
    """Dtype of matrix products; auto chooses what is fast and safe."""

    compile: Flag = False
    """Compile the model with torch.compile."""


@dataclass(frozen=True)
class Train:
    """Train a GPT on your text, or on built-in stories if no text is given.

    For example:
      normscope train
      normscope train my.txt
      normscope train books/ notes/*.md --depth 6
      cat log | normscope train -

    Ctrl-C saves a checkpoint and stops; `normscope resume` continues.
    """

    sources: Annotated[
        tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="[TEXT ...]", help_behavior_hint="")
    ] = ()
    """Files, folders or glob patterns (.txt .md .py .jsonl .parquet), - for stdin, or one prepared folder."""

    out: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER", help_behavior_hint="")] = None
    """Run folder (default: a new folder in runs/)."""

    recipe: Annotated[str, tyro.conf.arg(metavar="NAME")] = "dial"
    """dial: model and training scaled by --depth. sprint: a small, fast character model."""

    depth: OptionalInt = None
    """Number of blocks. Width, heads, learning rates and steps scale with it."""

    prompt: Annotated[str, tyro.conf.arg(metavar="TEXT", help_behavior_hint="")] = ""
    """Prompt of the samples drawn during training."""

    data: DataOptions = field(default_factory=DataOptions)
    gpt: ModelOptions = field(default_factory=ModelOptions)
    optimization: OptimizationOptions = field(default_factory=OptimizationOptions)
    intervals: IntervalOptions = field(default_factory=IntervalOptions)
    hardware: HardwareOptions = field(default_factory=HardwareOptions)
    logging: LoggingOptions = field(default_factory=LoggingOptions)


def main(arguments: Sequence[str]) -> int:
    command = read_arguments(Train, "train", arguments)
    chosen = resolve_recipe(
        command.recipe,
        command.depth,
        preset=command.gpt.preset,
        tokenizer=command.data.tokenizer,
        vocab_size=command.data.vocab_size,
        split=command.data.split,
    )
    _check_no_unused_options(command, chosen)
    command.logging.check()
    folder = new_run_folder(command.sources) if command.out is None else command.out
    with progress_bar() as progress:
        run = start_run(
            folder,
            command.sources,
            chosen,
            column=command.data.column,
            val_fraction=command.data.val_fraction,
            allow_special=command.data.allow_special,
            model=parse_model_settings(command.gpt),
            train=_train_settings(command),
            prompt=command.prompt,
            progress=progress,
        )
    return train_with_display(run, command.logging)


def _check_no_unused_options(command: Train, chosen: Recipe) -> None:
    """Raise on options that would have no effect, such as a tokenizer for a prepared folder."""
    settings = {f"--{name.replace('_', '-')}": value for name, value in vars(command.data).items() if name != "column"}
    given = [name for name, value in settings.items() if value is not None and value is not False]
    if is_prepared(command.sources):
        problem = f"{command.sources[0]} is already tokenized"
        unused = given
    elif not command.sources:
        problem = "the built-in stories have a fixed validation split"
        unused = [name for name in given if name in ("--split", "--val-fraction", "--allow-special")]
    else:
        problem, unused = "", []
    if "--vocab-size" in given and chosen.tokenizer != "bpe" and not unused:
        problem, unused = f"the tokenizer {chosen.tokenizer!r} has a fixed vocabulary", ["--vocab-size"]
    if unused:
        raise ConfigError(
            f"{problem}, so {' and '.join(unused)} would have no effect\nfix: omit {' and '.join(unused)}"
        )


def _train_settings(command: Train) -> dict[str, Any]:
    given = {**vars(command.optimization), **vars(command.intervals), **vars(command.hardware)}
    settings = {name: value for name, value in given.items() if value is not None}
    if settings.get("grad_clip") == 0:
        settings["grad_clip"] = None
    return settings


def parse_model_settings(command: ModelSizeOptions) -> dict[str, Any]:
    given = {name: getattr(command, name) for name in ("width", "heads", "context")}
    settings = {name: value for name, value in given.items() if value is not None}
    for text in command.model:
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--model expects NAME=VALUE, but got {text!r}\nfix: --model norm=layer")
        settings[name.replace("-", "_")] = _parse_value(value)
    return settings


def _parse_value(text: str) -> Any:
    """Parse a boolean, None, a number or a string."""
    constants = {"true": True, "false": False, "none": None}
    if text.lower() in constants:
        return constants[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
