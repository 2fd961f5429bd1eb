"""Load a checkpoint into a trainer, after checking that the two fit."""

from typing import Any

import msgspec
from torch import Tensor

from normscope.runs.config import check_same_config
from normscope.runs.run import Run
from normscope.training.trainer import Trainer


def load_checkpoint_state(run: Run, step: int, trainer: Trainer) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """Load the tensors and the state of a step; an error names what does not fit the trainer."""
    with run.checkpoints.with_alternatives(step):
        state = run.checkpoints.state(step)
        check_same_config(run.config, state.config)
    return run.checkpoints.tensors(step, trainer.expected_tensors(step)), msgspec.to_builtins(state)
