"""`normscope train`: from text to a run folder."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from normscope.cli.training import preparation, watch_and_train
from normscope.errors import ConfigError
from normscope.train.config import OnNaN, OptimiserName, Precision, TrainConfig
from normscope.train.recipes import overridden, recipe
from normscope.train.run import is_run
from normscope.train.schedule import Shape
from normscope.train.start import start


@dataclass(frozen=True)
class Train:
    """Train a GPT on your text, or, without any, on the built-in stories.

    For instance: normscope train my.txt; normscope train books/ notes/*.md --depth 6; cat log | normscope train -

    What is not given comes from the recipe. Ctrl-C saves and stops; `normscope resume` goes on.
    """

    sources: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="[TEXT ...]")] = ()
    """Files, folders or patterns (.txt .md .py .jsonl .parquet), - for what is piped in, or one prepared folder."""

    out: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")] = None
    """Where the run goes; by default a new folder in runs/."""

    recipe: str = "dial"
    """dial: a model as large as --depth says. sprint: characters, small and fast."""

    depth: int | None = None
    """The dial: how many blocks. Width, heads, rates and the number of steps follow from it."""

    preset: str | None = None
    """The GPT: nanochat, gpt2 or llama."""

    width: int | None = None
    heads: int | None = None
    context: int | None = None
    """How many tokens the model sees."""

    model: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE ...")] = ()
    """Any other setting of the model, for instance activation=swiglu norm=layer wiring=post."""

    tokenizer: str | None = None
    """characters, bytes, bpe, or the path of a tokenizer.json."""

    vocab_size: int | None = None
    """How many tokens bpe learns."""

    column: str = "text"
    """Where the text is in .jsonl and .parquet files."""

    split: Literal["seed", "tail"] | None = None
    """What is held out for validation: pieces from everywhere, or the end of the text."""

    share: float | None = None
    """How much of the text is held out; a tenth, or a megabyte if that is less."""

    prompt: str = ""
    """What samples begin with."""

    steps: int | None = None
    batch: int | None = None
    """Windows of text a step."""

    micro_batch: int | None = None
    """Windows at a time: fewer need less memory and give the same result."""

    optimiser: OptimiserName | None = None
    matrix_rate: float | None = None
    """The learning rate of the matrices."""

    rate: float | None = None
    """The learning rate of everything else."""

    weight_decay: float | None = None
    momentum: float | None = None
    muon_steps: int | None = None
    beta1: float | None = None
    beta2: float | None = None
    schedule: Shape | None = None
    warmup: float | None = None
    """The share of the steps in which the rate rises."""

    decay: float | None = None
    """The share of the steps in which it falls."""

    final_rate: float | None = None
    clip: float | None = None
    """The largest norm of all gradients together; 0 for any."""

    seed: int | None = None
    evaluate_every: int | None = None
    sample_every: int | None = None
    save_every: int | None = None
    device: str | None = None
    precision: Precision | None = None
    compile: bool | None = None
    """Let torch.compile work on the model first."""

    on_nan: OnNaN | None = None
    """At a number that is not finite: stop, or rewind to the last checkpoint."""

    tensorboard: bool = False
    """Write for TensorBoard too."""

    wandb: Literal["off", "offline", "online"] = "off"
    """Write for Weights & Biases too."""


def main(arguments: Sequence[str]) -> int:
    command = tyro.cli(Train, prog="normscope train", args=list(arguments))
    chosen = overridden(
        recipe(command.recipe, command.depth),
        preset=command.preset,
        tokenizer=command.tokenizer,
        vocab_size=command.vocab_size,
        split=command.split,
    )
    folder = _new_folder(command) if command.out is None else command.out
    with preparation() as progress:
        run = start(
            folder,
            command.sources,
            chosen,
            column=command.column,
            share=command.share,
            model=_model_settings(command),
            train=_train_settings(command),
            prompt=command.prompt,
            progress=progress,
        )
    return watch_and_train(run, tensorboard=command.tensorboard, wandb=command.wandb)


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
    names = {field.name for field in dataclasses.fields(TrainConfig)}
    given = {name: value for name, value in vars(command).items() if name in names and value is not None}
    if given.get("clip") == 0:
        given["clip"] = None
    return given


def _model_settings(command: Train) -> dict[str, Any]:
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
