"""Start a run from the weights of another model: its architecture, and a copy of its weights in the run folder."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from normscope.errors import ConfigError
from normscope.interop.checkpoint import ExternalCheckpoint
from normscope.models.gpt import GPTConfig
from normscope.runs.config import Origin
from normscope.runs.initial_weights import check_weights, shortened, write_initial_weights
from normscope.storage.safe_folder import SafeFolder
from normscope.training.recipes import Recipe, finetune

CHANGEABLE = ("context", "dropout")
"""Settings of a model that its weights do not depend on."""


def finetuning_recipe(
    source: str | Path, given: Mapping[str, Any], lora: object, split: Literal["random", "tail"] | None
) -> Recipe:
    """The recipe for training from a checkpoint; raises on settings that the checkpoint determines."""
    for name, value in given.items():
        if value is not None:
            raise ConfigError(
                f"{name}={value} contradicts --from {source}, which determines architecture and tokenizer\n"
                f"fix: leave it out, or train a new model without --from"
            )
    recipe = finetune(lora is not None)
    return recipe if split is None else dataclasses.replace(recipe, split=split)


def source_config(source: ExternalCheckpoint, model: Mapping[str, Any]) -> GPTConfig:
    """The config of a checkpoint, with a shorter context or dropout if given."""
    for name, value in model.items():
        if name not in CHANGEABLE and getattr(source.config, name, value) != value:
            raise ConfigError(
                f"{name}={value!r} contradicts {source.path}, whose weights have {name}="
                f"{getattr(source.config, name)!r}\nfix: leave it out; only {' and '.join(CHANGEABLE)} may change"
            )
    config = dataclasses.replace(source.config, **model)
    if config.context > source.config.context:
        raise ConfigError(
            f"context={config.context} is longer than that of {source.path}\n"
            f"fix: use at most {source.config.context} tokens"
        )
    return config


def copy_weights(folder: SafeFolder, source: ExternalCheckpoint, config: GPTConfig) -> Origin:
    """Copy the weights of a checkpoint into a new run folder."""
    weights = shortened(source.weights, config)
    check_weights(weights, config)
    return Origin(
        format=source.format,
        path=str(source.path.resolve()),
        weights_sha256=write_initial_weights(folder, weights),
    )
