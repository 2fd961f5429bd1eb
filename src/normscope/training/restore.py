"""A checkpoint, checked against the run and the trainer that it is to be restored into."""

from collections.abc import Mapping
from typing import Any

import msgspec
from torch import Tensor

from normscope.errors import CheckpointError
from normscope.runs.run import Run, differences
from normscope.training.trainer import Trainer


def load_state(run: Run, step: int, trainer: Trainer) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """The tensors and facts of a step; refused unless they fit the trainer, by the names of what doesn't."""
    checkpoints = run.checkpoints
    with checkpoints.explained(step):
        facts, found = checkpoints.state(step), checkpoints.open(step)
        refuse_other_config(run, facts.config)
        wanted = trainer.expected(step)
        tensors = {group: found.tensors(group, wanted[group]) for group in wanted}
        for name, tensor in tensors["model"].items():
            if not bool(tensor.isfinite().all()):
                raise CheckpointError(f"{checkpoints.path(step)} has numbers in {name} that are not finite")
    return tensors, msgspec.to_builtins(facts)


def refuse_other_config(run: Run, saved: Mapping[str, Any]) -> None:
    """Refuse a config that changed since a checkpoint was written, by the names of its settings."""
    changes = list(differences(saved, run.config.to_json()))
    if changes:
        raise CheckpointError(
            f"config.json is not the one that this run began with: {'; '.join(changes)}\n"
            f"fix: put it back, or start a new run with the new settings"
        )
