"""The Python API of training: `train` text, `open_run` a folder, and `resume`, `sample` or `report` it."""

import dataclasses
import inspect
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from normscope.checks import did_you_mean, short_repr
from normscope.errors import ConfigError
from normscope.models.gpt import GPTConfig
from normscope.ops.norm.distributed import computing_alone
from normscope.render.streaming import print_text, reading_progress
from normscope.runs.events import Observer
from normscope.runs.job import job_arguments, run_of_this_job
from normscope.runs.read_source import read_source
from normscope.runs.run import Run, new_run_folder, run_folders
from normscope.runs.sample import sample
from normscope.runtime.devices import resolve_device
from normscope.runtime.ranks import check_device, join_ranks
from normscope.training.config import ParallelName, TrainConfig, WandbMode
from normscope.training.create_run import create_run, is_prepared
from normscope.training.finetune import finetuning_recipe
from normscope.training.loop import EndReason, check_steps, train_run
from normscope.training.observers.log_lines import choose_display, command_name
from normscope.training.observers.trackers import TensorBoard, WeightsAndBiases, import_tracker
from normscope.training.periodic_tasks import SAMPLE_TOKENS
from normscope.training.recipes import Recipe
from normscope.training.recipes import recipe as lookup_recipe

_NOT_OF_THE_RUN = ("out", "tensorboard", "wandb", "quiet", "observers", "settings")
"""Arguments of `train` that another start of the job may change."""


class TrainingRun(Run):
    """A run that can be resumed; see `Run` for `sample`, `report`, `load_model` and the files of the folder."""

    end_reason: EndReason | None = None
    """Why the last `train` or `resume` of this object ended."""

    def resume(
        self,
        *,
        from_step: int | None = None,
        until: int | None = None,
        steps: int | None = None,
        device: str | None = None,
        parallel: ParallelName | None = None,
        tensorboard: bool = False,
        wandb: WandbMode = "off",
        quiet: bool = False,
        observers: Sequence[Observer] | None = None,
    ) -> EndReason:
        """Continue the run, and return why it ended: "done", "stopped" or "paused".

        Args:
            from_step: Resume from this checkpoint instead of the last, and drop later ones; 0 is the start.
            until: Save and pause after this step.
            steps: Extend the run to this number of steps. From here on, the learning-rate schedule is that of the
                longer run; the log and the report note the extension.
            device, parallel: Settings of `TrainConfig` to use instead of the run's, this time only.
            tensorboard: Log to TensorBoard.
            wandb: Log to Weights & Biases: off, offline or online.
            quiet: Show no progress and no samples.
            observers: Displays and trackers in place of those above.
        """
        _check_trackers(tensorboard, wandb)
        ranks = join_ranks()
        shows = observers is None and not quiet and ranks.is_main
        check_steps(self, ranks, from_step, until)
        self.reload_extension()
        if steps is not None:
            self.plan_extension(steps)
        end = self.config.train.steps
        is_to_end = from_step is None and (until is None or until >= end)
        if is_to_end and ranks.from_main(self._verified_end) == "done":
            if shows:
                print(f"{self.folder} is done: all {end} steps are completed")
                print("to train longer, use --steps; to repeat the last part, use --from-step")
            self.end_reason = "done"
            return self.end_reason
        if observers is None and not ranks.is_main:
            observers = []
        elif observers is None:
            observers = [*([] if quiet else [choose_display(sys.stdout)]), *_trackers(self, tensorboard, wandb)]
        self.end_reason = train_run(self, observers, from_step=from_step, until=until, device=device, parallel=parallel)
        if self.end_reason == "done" and shows:
            _print_samples(self)
        return self.end_reason

    def _verified_end(self) -> Literal["done", "to do"]:
        """Whether all steps are done; raises if the last checkpoint is damaged."""
        if not self.is_done():
            return "to do"
        self.checkpoints.load(self.config.train.steps)
        return "done"


def train(
    sources: str | Path | Sequence[str | Path] = (),
    *,
    depth: int | None = None,
    out: str | Path | None = None,
    init_from: str | Path | None = None,
    recipe: str | None = None,
    preset: str | None = None,
    tokenizer: str | None = None,
    vocab_size: int | None = None,
    split: Literal["random", "tail"] | None = None,
    val_fraction: float | None = None,
    column: str = "text",
    allow_special: bool = False,
    prompt: str = "",
    model: Mapping[str, Any] | None = None,
    tensorboard: bool = False,
    wandb: WandbMode = "off",
    quiet: bool = False,
    observers: Sequence[Observer] | None = None,
    **settings: Any,
) -> TrainingRun:
    """Train a GPT on text and return its run, like `normscope train`.

    Args:
        sources: Files, folders and glob patterns; one folder written by `prepare`; or empty for the built-in stories.
        depth: Number of blocks; width, heads, learning rates and steps scale with it.
        out: Run folder; by default a new folder in runs/.
        init_from: Start from these weights instead of random ones: a run, or a Hugging Face folder. Architecture and
            tokenizer come from there.
        recipe, preset: Names of the recipe ("dial" by default) and of the model preset.
        tokenizer, vocab_size, split, val_fraction, column, allow_special: See `prepare`.
        prompt: Prompt of the samples drawn during training.
        model: Model settings by name, such as {"norm": "layer"}.
        tensorboard, wandb, quiet, observers: See `TrainingRun.resume`.
        settings: Any field of `TrainConfig` (steps, lr, ...) or `GPTConfig` (width, context, ...).

    A minimal example::

        run = normscope.train("my.txt", depth=4, steps=500)
        print(run.sample("Once upon a time"))
    """
    everything = {**locals()}
    paths = [sources] if isinstance(sources, str | Path) else sources
    if init_from is None:
        names = {"preset": preset, "tokenizer": tokenizer, "vocab_size": vocab_size, "split": split}
        source, chosen = None, lookup_recipe(recipe or "dial", depth, **names)
    else:
        given = {"recipe": recipe, "depth": depth, "preset": preset, "tokenizer": tokenizer, "vocab_size": vocab_size}
        source, chosen = read_source(init_from), finetuning_recipe(init_from, given, settings.get("lora"), split)
    data = {"tokenizer": tokenizer, "vocab_size": vocab_size, "split": split, "val_fraction": val_fraction}
    _check_no_unused(paths, chosen, {**data, "allow_special": allow_special or None})
    _check_trackers(tensorboard, wandb)
    if not isinstance(model, Mapping | None):
        raise ConfigError(f"model={short_repr(model)} must be a dict of settings")
    model_settings, training = _split_settings(settings)
    if twice := model_settings.keys() & (model or {}).keys():
        raise ConfigError(f"{min(twice)} is given twice: as an argument and in model\nfix: give it once")
    everything |= {**settings, "sources": [*map(str, paths)], **dict.fromkeys(_NOT_OF_THE_RUN)}
    arguments = job_arguments(everything)

    def find_or_create() -> str:
        folders = run_folders(paths) if out is None else [Path(out)]
        created_before = run_of_this_job(folders, arguments)
        if created_before is not None:
            return str(created_before)
        with reading_progress(quiet or observers is not None) as progress:
            created = create_run(
                new_run_folder(paths) if out is None else out,
                paths,
                chosen,
                column=column,
                val_fraction=val_fraction,
                allow_special=allow_special,
                model={**model_settings, **(model or {})},
                train=training,
                prompt=prompt,
                source=source,
                progress=progress,
                arguments=arguments,
            )
        return str(created.folder)

    ranks = join_ranks()
    check_device(resolve_device(settings.get("device", "auto")), ranks)
    # Only rank 0 tokenizes; it tells the others where the run is.
    run = open_run(ranks.from_main(find_or_create))
    run.resume(tensorboard=tensorboard, wandb=wandb, quiet=quiet, observers=observers)
    return run


def open_run(folder: str | Path) -> TrainingRun:
    """Open a run folder.

    Args:
        folder: A folder written by `train` or `normscope train`.
    """
    return TrainingRun.open(folder)


def resume(run: str | Path, **options: Any) -> TrainingRun:
    """Continue a run from its last checkpoint, like `normscope resume`.

    Args:
        run: The run folder.
        options: See `TrainingRun.resume`.
    """
    opened = open_run(run)
    opened.resume(**options)
    return opened


def report(run: str | Path) -> Path:
    """Write the HTML report of a run, like `normscope report`, and return its path.

    Args:
        run: The run folder.
    """
    return open_run(run).report()


def _check_no_unused(sources: Sequence[str | Path], chosen: Recipe, data: Mapping[str, Any]) -> None:
    """Raise on settings of the data that would have no effect, such as a tokenizer for a prepared folder."""
    given = {name: f"{name}={value}" for name, value in data.items() if value is not None}
    if is_prepared(sources):
        problem, unused = f"{sources[0]} is already tokenized", list(given.values())
    elif not sources:
        problem = "the built-in stories have a fixed validation split"
        unused = [text for name, text in given.items() if name in ("split", "val_fraction", "allow_special")]
    else:
        problem, unused = "", []
    if "vocab_size" in given and chosen.tokenizer != "bpe" and not unused:
        problem, unused = f"the tokenizer {chosen.tokenizer!r} has a fixed vocabulary", [given["vocab_size"]]
    if unused:
        which = "it" if len(unused) == 1 else "them"
        raise ConfigError(f"{problem}, so {' and '.join(unused)} would have no effect\nfix: omit {which}")


def _split_settings(settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Separate the settings of the model from those of the training; raises on unknown names."""
    model, train_fields = ({field.name for field in dataclasses.fields(kind)} for kind in (GPTConfig, TrainConfig))
    for name in settings.keys() - model - train_fields:
        known = [*inspect.signature(train).parameters, *train_fields, *model]
        listed = f"training ({', '.join(sorted(train_fields))}) or of the model ({', '.join(sorted(model))})"
        fix = did_you_mean(name, known, f"use a setting of the {listed}")
        raise ConfigError(f"unknown setting {short_repr(name)}\nfix: {fix}")
    return [{name: value for name, value in settings.items() if name in known} for known in (model, train_fields)]


def _check_trackers(tensorboard: bool, wandb: WandbMode) -> None:
    """Raise if a tracker is unknown or not installed, before a run is created."""
    if wandb not in get_args(WandbMode):
        raise ConfigError(f"wandb={short_repr(wandb)} must be one of {', '.join(get_args(WandbMode))}")
    if tensorboard:
        import_tracker("torch.utils.tensorboard", "tensorboard")
    if wandb != "off":
        import_tracker("wandb", "wandb")


def _trackers(run: Run, tensorboard: bool, wandb: WandbMode) -> list[Observer]:
    observers: list[Observer] = []
    if tensorboard:
        run.safe_folder.has("tensorboard")  # raises on a link
        observers.append(TensorBoard(run.folder / "tensorboard"))
    if wandb != "off":
        run.safe_folder.has("wandb")
        observers.append(WeightsAndBiases(run.folder, mode=wandb, config=run.config.to_json()))
    return observers


def _print_samples(run: Run) -> None:
    """Print two samples of the best checkpoint, and how to share the model."""
    with computing_alone():
        for text in sample(run, run.config.prompt, samples=2, max_new_tokens=SAMPLE_TOKENS):
            print()
            print_text(text.prompt + text.text)
    command = f"{command_name()} export {shlex.quote(str(run.folder))} --to html"
    adapters = ", peft" * (run.config.train.lora is not None)
    others = f"hf, onnx, safetensors{adapters}, for some models gguf, nanogpt"
    print(f"\nto share the model as one HTML page: {command} (or {others})")
