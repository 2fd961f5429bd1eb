"""The Python API of training: `train` text, `open_run` a folder, and `resume`, `sample` or `report` it."""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from normscope.checks import short_repr
from normscope.errors import ConfigError
from normscope.models.gpt import GPTConfig
from normscope.runs.events import Observer
from normscope.runs.run import Run
from normscope.training.config import TrainConfig
from normscope.training.loop import EndReason, train_run
from normscope.training.observers.display import choose_display
from normscope.training.recipes import resolve_recipe
from normscope.training.start_run import new_run_folder, start_run


class TrainingRun(Run):
    """A run that can be resumed; see `Run` for `sample`, `report`, `load_model` and the files of the folder."""

    def resume(
        self, *, observers: Sequence[Observer] | None = None, from_step: int | None = None, until: int | None = None
    ) -> EndReason:
        """Continue the run, and return why it ended: "done", "stopped" or "paused".

        Args:
            observers: Displays and trackers; by default a display on stdout.
            from_step: Resume from this checkpoint instead of the last, and drop later ones; 0 is the start.
            until: Save and pause after this step.
        """
        return train_run(self, _observers(observers), from_step=from_step, until=until)


def train(
    sources: str | Path | Sequence[str | Path] = (),
    *,
    depth: int | None = None,
    out: str | Path | None = None,
    recipe: str = "dial",
    preset: str | None = None,
    tokenizer: str | None = None,
    vocab_size: int | None = None,
    split: Literal["random", "tail"] | None = None,
    val_fraction: float | None = None,
    column: str = "text",
    allow_special: bool = False,
    prompt: str = "",
    observers: Sequence[Observer] | None = None,
    **settings: Any,
) -> TrainingRun:
    """Train a GPT on text and return its run, like `normscope train`.

    Args:
        sources: Files, folders and glob patterns; one folder written by `prepare`; or empty for the built-in stories.
        depth: Number of blocks; width, heads, learning rates and steps scale with it.
        out: Run folder; by default a new folder in runs/.
        recipe, preset: Names of the recipe and of the model preset.
        tokenizer, vocab_size, split, val_fraction, column, allow_special: See `prepare`.
        prompt: Prompt of the samples drawn during training.
        observers: Displays and trackers; by default a display on stdout.
        settings: Any field of `TrainConfig` (steps, lr, ...) or `GPTConfig` (width, context, ...).

    A minimal example::

        run = normscope.train("my.txt", depth=4, steps=500)
        print(run.sample("Once upon a time"))
    """
    paths = [sources] if isinstance(sources, str | Path) else sources
    chosen = resolve_recipe(recipe, depth, preset=preset, tokenizer=tokenizer, vocab_size=vocab_size, split=split)
    model, training = _split_settings(settings)
    folder = new_run_folder(paths) if out is None else out
    created = start_run(
        folder,
        paths,
        chosen,
        column=column,
        val_fraction=val_fraction,
        allow_special=allow_special,
        model=model,
        train=training,
        prompt=prompt,
    )
    run = open_run(created.folder)
    run.resume(observers=observers)
    return run


def open_run(folder: str | Path) -> TrainingRun:
    """Open a run folder.

    Args:
        folder: A folder written by `train` or `normscope train`.
    """
    return TrainingRun.open(folder)


def _split_settings(settings: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Separate the settings of the model from those of the training; raises on unknown names."""
    model_fields = {field.name for field in dataclasses.fields(GPTConfig)}
    train_fields = {field.name for field in dataclasses.fields(TrainConfig)}
    for name in settings:
        if name not in model_fields | train_fields:
            raise ConfigError(
                f"unknown setting {short_repr(name)}\n"
                f"fix: use a setting of the training ({', '.join(sorted(train_fields))}) "
                f"or of the model ({', '.join(sorted(model_fields - {'vocab_size'}))})"
            )
    return (
        {name: value for name, value in settings.items() if name in model_fields},
        {name: value for name, value in settings.items() if name in train_fields},
    )


def _observers(observers: Sequence[Observer] | None) -> Sequence[Observer]:
    return [choose_display(sys.stdout)] if observers is None else observers
