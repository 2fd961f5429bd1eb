"""Load a checkpoint into a trainer, after checking that the two fit."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec
from torch import Tensor

from normscope.errors import CheckpointError, NormscopeError
from normscope.runs.run import Run, RunConfig, check_finite, config_differences
from normscope.training.trainer import Trainer


def load_checkpoint_state(run: Run, step: int, trainer: Trainer) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """Load the tensors and the state of a step; an error names what does not fit the trainer."""
    checkpoints = run.checkpoints
    with checkpoints.with_alternatives(step):
        state, folder = checkpoints.state(step), checkpoints.open(step)
        check_same_config(run, state.config)
        expected = trainer.expected_tensors(step)
        tensors = {group: folder.tensors(group, expected[group]) for group in expected}
        check_finite(tensors["model"], checkpoints.path(step))
    return tensors, msgspec.to_builtins(state)


def check_same_config(run: Run, saved: Mapping[str, Any]) -> None:
    """Raise if the config changed since a checkpoint was written, naming the settings."""
    with suppress(NormscopeError):  # an invalid config is compared as it is
        saved = RunConfig.from_json(saved).to_json()  # migrated, with defaults for fields added since
    changes = list(config_differences(saved, run.config.to_json()))
    if changes:
        raise CheckpointError(
            f"config.json changed since this run started: {'; '.join(changes)}\n"
            f"fix: restore it, or start a new run with the new settings"
        )
