"""Short trainings in float64, to be done by any number of ranks."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from normscope.blocks.norm.norm_spec import NormSpec
from normscope.data.batches import Batches
from normscope.models.gpt import GPT, GPTConfig
from normscope.models.presets import preset
from normscope.ops.cross_entropy import IGNORE_INDEX
from normscope.runs.initial_weights import set_trainable
from normscope.runtime.ranks import ALONE, Ranks
from normscope.training.config import TrainConfig
from normscope.training.parallel.sharded_optimizer import is_sharded
from normscope.training.trainer import BatchSource, Trainer
from tests.support import random_tokens, scramble

VOCABULARY, CONTEXT, STEPS = 13, 8, 3  # of no size that 2 or 3 divide
BATCHES: dict[str, dict[str, int]] = {
    "6": {"batch": 6},
    "7": {"batch": 7},  # which 2 and 3 ranks cannot divide
    "6-by-4": {"batch": 6, "micro_batch": 4},
    "5-by-2": {"batch": 5, "micro_batch": 2},  # the last micro-batch has a row for one rank
}
DATA: dict[str, dict[str, Any]] = {
    "text": {},
    "conversations": {},
    "batch-norm": {"norm": NormSpec("[b s] d", state="running", sync=True), "allow_future_leak": True},
    "power-norm": {"norm": NormSpec("[b s] d", statistic="rms", state="power", sync=True)},
    "stateless-norm": {"norm": NormSpec("[b s] d", sync=True), "allow_future_leak": True},
}
"""What the rows are; or, of text, a norm that shares statistics between rows, as conversations may not have."""
TRAINED: dict[str, dict[str, Any]] = {
    "all": {},
    "lora": {"lora": 2},
    "freeze": {"freeze": "embedding.*,blocks.0.*"},
    "tied": {},
}
AXES = {
    "preset": ["gpt2", "llama", "nanochat", "nanochat-2026-07"],
    "parallel": ["ddp", "fsdp"],
    "batch": BATCHES,
    "data": DATA,
    "optimizer": ["muon", "adamw"],
    "trained": TRAINED,
}


@dataclass(frozen=True)
class Job:
    """One value of each of `AXES`."""

    preset: str
    parallel: str
    batch: str
    data: str
    optimizer: str
    trained: str

    def model_config(self) -> GPTConfig:
        sizes = {"vocab_size": VOCABULARY, "context": CONTEXT, "depth": 2, "width": 12, "heads": 2}
        tied = {"tied_head": True} if self.trained == "tied" else {}
        return preset(self.preset, **sizes, **DATA[self.data], **tied)

    def config(self) -> TrainConfig:
        settings: dict[str, Any] = {**BATCHES[self.batch], **TRAINED[self.trained], "grad_clip": 0.5}
        return TrainConfig(steps=STEPS, optimizer=self.optimizer, parallel=self.parallel, lr=1e-3, **settings)  # type: ignore[arg-type]

    def batches(self) -> BatchSource:
        return Conversations(self.config()) if self.data == "conversations" else text(self.config())


class Conversations:
    """Rows of several documents, some of which have targets. The last row of every second batch has none."""

    def __init__(self, config: TrainConfig) -> None:
        self._text = text(config)

    def batch(self, number: int) -> tuple[np.ndarray, ...]:
        inputs, targets = self._text.batch(number)
        rng = np.random.default_rng(number)
        targets[rng.random(targets.shape) < 0.5] = IGNORE_INDEX
        targets[-1 if number % 2 else 0] = IGNORE_INDEX
        first = rng.integers(1, CONTEXT, len(inputs))[:, None]
        positions = np.arange(CONTEXT)[None]
        return inputs, targets, np.where(positions < first, positions, positions - first)


def text(config: TrainConfig) -> Batches:
    return Batches(random_tokens(VOCABULARY, 301, seed=3).numpy(), CONTEXT, config.batch, seed=1)


def new_trainer(job: Job, ranks: Ranks = ALONE, dtype: torch.dtype = torch.float64, compile: bool = False) -> Trainer:
    torch.manual_seed(0)
    model, config = GPT(job.model_config()).to(dtype), replace(job.config(), compile=compile)
    set_trainable(model, config)
    scramble(model)
    return Trainer(model, config, job.batches(), ranks=ranks)


@dataclass(frozen=True)
class Outcome:
    """What a training gives: loss and gradient norm of each step, and the model at the end.

    Sharded models are complete on rank 0, and None on the others.
    """

    losses: list[float]
    gradient_norms: list[float]
    state: dict[str, Tensor] | None


def train(job: Job, ranks: Ranks = ALONE, compile: bool = False) -> Outcome:
    trainer = new_trainer(job, ranks, compile=compile)
    trainer.warm_up_reducer()
    steps = [trainer.step() for _ in range(STEPS)]
    with trainer.full_model() as model:
        if not is_sharded(trainer.model.embedding.weight):
            model = trainer.model
        state = None if model is None else {name: tensor.clone() for name, tensor in model.state_dict().items()}
    return Outcome([step.loss for step in steps], [step.grad_norm for step in steps], state)


def train_all(ranks: Ranks, jobs: list[Job]) -> list[Outcome]:
    return [train(job, ranks) for job in jobs]


def train_compiled(ranks: Ranks, job: Job) -> Outcome:
    return train(job, ranks, compile=True)
