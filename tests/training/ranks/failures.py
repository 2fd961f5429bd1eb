"""What ranks do in tests of faults: train a run, and tell how it ended."""

from contextlib import ExitStack
from pathlib import Path

import torch
from torch import Tensor

from normscope.errors import NormscopeError
from normscope.models.gpt import GPT
from normscope.runs.run import Run
from normscope.runtime.ranks import Ranks
from normscope.training.loop import train_run
from normscope.training.session import TrainingSession
from normscope.training.trainer import Trainer
from tests.support import file_size_limit

Ending = tuple[str, str]
"""How `train_run` ended; or the class of an error, and its message."""


def train(ranks: Ranks, folder: str) -> Ending:
    try:
        return "ended", train_run(Run.open(Path(folder)))
    except NormscopeError as error:
        return type(error).__name__, str(error)


def train_with_bad_batches(ranks: Ranks, folder: str, *numbers: int) -> Ending:
    """The loss of the last row of these batches is not a number, on the rank that has it."""
    run = Run.open(Path(folder))
    batches = TrainingSession(run, None, []).batches
    bad = [torch.from_numpy(batches.batch(number)[0][-1]) for number in numbers]
    true_loss = GPT.loss

    def loss(self: GPT, tokens: Tensor, *more: Tensor) -> Tensor:
        value = true_loss(self, tokens, *more)
        is_bad = any(torch.equal(row, other) for row in bad for other in tokens)
        return value * torch.nan if is_bad else value

    GPT.loss = loss  # type: ignore[method-assign, assignment]
    return train(ranks, folder)


def train_with_full_disk(ranks: Ranks, folder: str, full: int) -> Ending:
    """One rank cannot write files of more than a few bytes once it has saved two checkpoints."""
    state, limits = Trainer.state, ExitStack()

    def limited(self: Trainer) -> object:
        if ranks.rank == full and self.steps_done > 4:
            limits.enter_context(file_size_limit(500))
        return state(self)

    Trainer.state = limited  # type: ignore[method-assign, assignment]
    return train(ranks, folder)


def train_out_of_memory(ranks: Ranks, folder: str, where: int) -> Ending:
    """One rank has no memory left after four steps."""
    step = Trainer.step

    def failing(self: Trainer) -> object:
        if ranks.rank == where and self.steps_done == 4:
            raise MemoryError("cannot allocate memory")
        return step(self)

    Trainer.step = failing  # type: ignore[method-assign, assignment]
    return train(ranks, folder)
