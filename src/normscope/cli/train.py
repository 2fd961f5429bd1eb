"""`normscope train`: from text to a run folder."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from normscope.cli.options import Flag, OptionalFloat, OptionalInt, OptionalStr, read_arguments
from normscope.cli.training_output import Watching, preparation, watch_and_train
from normscope.data.tokenizers.choose import trains_bpe
from normscope.errors import ConfigError
from normscope.runs.run import is_run
from normscope.runtime.precision import Precision
from normscope.training.config import OnNaN, OptimizerName
from normscope.training.recipes import Recipe, override, recipe
from normscope.training.schedule import ScheduleName
from normscope.training.start_run import is_prepared, start_run


@dataclass(frozen=True)
class Text:
    """What is read, and how it becomes tokens."""

    tokenizer: OptionalStr = None
    """auto (what suits the text), characters, bytes, bpe, or the path of a tokenizer.json."""

    vocab_size: OptionalInt = None
    """How many tokens bpe learns; 2048 unless told otherwise, fewer with auto if the text is short."""

    column: Annotated[str, tyro.conf.arg(metavar="NAME")] = "text"
    """Where the text is in .jsonl and .parquet files."""

    split: Annotated[
        Literal["random", "tail"] | None, tyro.conf.arg(metavar="{random,tail}", help_behavior_hint="")
    ] = None
    """What is held out for validation: pieces from everywhere, or the end of the text."""

    val_fraction: OptionalFloat = None
    """How much of the text is held out; a tenth, or a megabyte if that is less."""

    allow_special: Flag = False
    """Let <|endoftext|> in the text end a document, and other special names stand for their tokens."""


@dataclass(frozen=True)
class Sizes:
    """How large the GPT is, and all else about it."""

    width: OptionalInt = None
    """How many numbers stand for a token."""

    heads: OptionalInt = None
    """How many heads the attention has; a divisor of the width."""

    context: OptionalInt = None
    """How many tokens the model sees."""

    model: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE ...", help_behavior_hint="")] = ()
    """Any other setting, for instance activation=swiglu norm=layer wiring=post."""


@dataclass(frozen=True)
class Model(Sizes):
    """What is trained. The recipe and --depth decide, unless told otherwise."""

    preset: OptionalStr = None
    """The GPT: nanochat, gpt2 or llama."""


@dataclass(frozen=True)
class Learning:
    """How it learns. What is not given comes from the recipe."""

    steps: OptionalInt = None
    """How many times the weights change."""

    batch: OptionalInt = None
    """How many windows of text each step learns from."""

    micro_batch: OptionalInt = None
    """How many of them at a time: fewer need less memory and give the same result."""

    optimizer: Annotated[OptimizerName | None, tyro.conf.arg(metavar="{muon,adamw}", help_behavior_hint="")] = None
    """Muon for the matrices and AdamW for the rest, or AdamW for all."""

    matrix_lr: OptionalFloat = None
    """The learning rate of the matrices."""

    lr: OptionalFloat = None
    """The learning rate of everything else."""

    weight_decay: OptionalFloat = None
    """What matrices lose in each step, times their learning rate."""

    momentum: OptionalFloat = None
    """How much of the past Muon keeps."""

    muon_steps: OptionalInt = None
    """How many products make Muon's step orthogonal, 1 to 5."""

    beta1: OptionalFloat = None
    """How long AdamW remembers gradients."""

    beta2: OptionalFloat = None
    """How long AdamW remembers their squares."""

    schedule: Annotated[
        ScheduleName | None, tyro.conf.arg(metavar="{linear,cosine,constant}", help_behavior_hint="")
    ] = None
    """How the rates fall at the end."""

    warmup: OptionalFloat = None
    """The share of the steps in which the rates rise."""

    decay: OptionalFloat = None
    """The share of the steps in which they fall."""

    final_lr: OptionalFloat = None
    """Where they end, as a share of the peak."""

    grad_clip: OptionalFloat = None
    """The largest norm of all gradients together; 0 for any."""

    seed: OptionalInt = None
    """Of the first weights, of the order of the text, and of what is held out."""

    on_nan: Annotated[OnNaN | None, tyro.conf.arg(metavar="{stop,rollback}", help_behavior_hint="")] = None
    """At a number that is not finite: stop, or rewind to the last checkpoint and pass the batch over."""


@dataclass(frozen=True)
class Times:
    """After how many steps; 0 is only at the end."""

    eval_every: OptionalInt = None
    """Validate."""

    sample_every: OptionalInt = None
    """Let the model write something."""

    save_every: OptionalInt = None
    """Save a checkpoint."""

    xray_every: OptionalInt = None
    """Take an x-ray and keep it in the run's folder, and tell what is wrong; 0 is never."""


@dataclass(frozen=True)
class Machine:
    """Where it runs; `normscope doctor` says what there is."""

    device: OptionalStr = None
    """cpu, cuda, mps and so on; auto takes an accelerator if there is one."""

    precision: Annotated[Precision | None, tyro.conf.arg(metavar="{auto,float32,bfloat16}", help_behavior_hint="")] = (
        None
    )
    """The type of the products; auto takes what is fast and safe."""

    compile: Flag = False
    """Let torch.compile work on the model first."""


@dataclass(frozen=True)
class Train:
    """Train a GPT on your text, or, without any, on the built-in stories.

    For instance:
      normscope train
      normscope train my.txt
      normscope train books/ notes/*.md --depth 6
      cat log | normscope train -

    Ctrl-C saves and stops; `normscope resume` goes on.
    """

    sources: Annotated[
        tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="[TEXT ...]", help_behavior_hint="")
    ] = ()
    """Files, folders or patterns (.txt .md .py .jsonl .parquet), - for what is piped in, or one prepared folder."""

    out: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER", help_behavior_hint="")] = None
    """Where the run goes; by default a new folder in runs/."""

    recipe: Annotated[str, tyro.conf.arg(metavar="NAME")] = "dial"
    """dial: a model as large as --depth says. sprint: characters, small and fast."""

    depth: OptionalInt = None
    """The dial: how many blocks. Width, heads, rates and the number of steps follow from it."""

    prompt: Annotated[str, tyro.conf.arg(metavar="TEXT", help_behavior_hint="")] = ""
    """What samples begin with."""

    text: Text = field(default_factory=Text)
    gpt: Model = field(default_factory=Model)
    learning: Learning = field(default_factory=Learning)
    times: Times = field(default_factory=Times)
    machine: Machine = field(default_factory=Machine)
    watching: Watching = field(default_factory=Watching)


def main(arguments: Sequence[str]) -> int:
    command = read_arguments(Train, "train", arguments)
    chosen = override(
        recipe(command.recipe, command.depth),
        preset=command.gpt.preset,
        tokenizer=command.text.tokenizer,
        vocab_size=command.text.vocab_size,
        split=command.text.split,
    )
    if trains_bpe(chosen.tokenizer, command.text.vocab_size):
        chosen = override(chosen, tokenizer="bpe")
    _refuse_idle_settings(command, chosen)
    command.watching.check()
    folder = _new_folder(command) if command.out is None else command.out
    with preparation() as progress:
        run = start_run(
            folder,
            command.sources,
            chosen,
            column=command.text.column,
            val_fraction=command.text.val_fraction,
            allow_special=command.text.allow_special,
            model=model_settings(command.gpt),
            train=_train_settings(command),
            prompt=command.prompt,
            progress=progress,
        )
    return watch_and_train(run, command.watching)


def _refuse_idle_settings(command: Train, chosen: Recipe) -> None:
    """Refuse what would be passed over in silence: a prepared folder has its tokens, and stories come as they are."""
    settings = {f"--{name.replace('_', '-')}": value for name, value in vars(command.text).items() if name != "column"}
    given = [name for name, value in settings.items() if value is not None and value is not False]
    if is_prepared(command.sources):
        problem = f"{command.sources[0]} is prepared: its text is tokens already"
        idle = given
    elif not command.sources:
        problem = "the built-in stories have their own validation stories"
        idle = [name for name in given if name in ("--split", "--val-fraction", "--allow-special")]
    else:
        problem, idle = "", []
    if "--vocab-size" in given and chosen.tokenizer != "bpe" and not idle:
        problem, idle = f"the tokenizer {chosen.tokenizer!r} has the tokens that it has", ["--vocab-size"]
    if idle:
        raise ConfigError(f"{problem}, and {' and '.join(idle)} would change nothing\nfix: leave it out")


def _new_folder(command: Train) -> Path:
    """runs/stories, runs/stories-2 and so on."""
    stem = Path(command.sources[0]).stem if command.sources else "stories"
    stem = "".join(character if character.isalnum() or character in "-_." else "-" for character in stem).strip("-.")
    name = stem or "run"
    number = 1
    while is_run(folder := Path("runs") / (name if number == 1 else f"{name}-{number}")):
        number += 1
    return folder


def _train_settings(command: Train) -> dict[str, Any]:
    given = {**vars(command.learning), **vars(command.times), **vars(command.machine)}
    settings = {name: value for name, value in given.items() if value is not None}
    if settings.get("grad_clip") == 0:
        settings["grad_clip"] = None
    return settings


def model_settings(command: Sizes) -> dict[str, Any]:
    given = {name: getattr(command, name) for name in ("width", "heads", "context")}
    settings = {name: value for name, value in given.items() if value is not None}
    for text in command.model:
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"a setting of the model is a name, '=' and a value, but got {text!r}\nfix: norm=layer")
        settings[name.replace("-", "_")] = _value(value)
    return settings


def _value(text: str) -> Any:
    """What a text stands for: a truth value, nothing, a number, or itself."""
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
