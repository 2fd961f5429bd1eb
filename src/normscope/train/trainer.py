"""The trainer: a model, its optimisers and its place in the data. One call is one step."""

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from normscope.errors import CheckpointError, NotFiniteError
from normscope.models.gpt import GPT
from normscope.train.config import TrainConfig
from normscope.train.optimisers.team import Team, gradient_norm

Tensors = dict[str, dict[str, Tensor]]


class BatchSource(Protocol):
    """Batches by number: the same number is always the same batch, so a place in the data is a number."""

    def batch(self, number: int) -> tuple[np.ndarray, np.ndarray]: ...


@dataclass(frozen=True)
class Step:
    """What one step was like.

    Args:
        number: how many steps are done, this one included.
        loss: nats a token, of the batch before the weights changed.
        gradient_norm: the length of all gradients, before clipping.
        rate: the share of the peak learning rate.
        tokens: how many tokens were learnt from.
    """

    number: int
    loss: float
    gradient_norm: float
    rate: float
    tokens: int


class Trainer:
    """All that changes while a model trains, and the step that changes it.

    Args:
        model: what is trained, on its device.
        config: how.
        batches: what it is trained on.
        autocast: makes the context that each pass runs in, for products of lower precision.
    """

    def __init__(
        self,
        model: GPT,
        config: TrainConfig,
        batches: BatchSource,
        autocast: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.model, self.config, self.batches, self.autocast = model, config, batches, autocast
        self.team = Team(model, config)
        self.done = 0  # steps
        self.next_batch = 0
        self.passed_over: list[int] = []  # batches that must not be learnt from
        self.random_before = torch.get_rng_state()  # as the random numbers stood before the last step was tried
        self._schedule = config.rates()
        self._loss: Callable[[Tensor, Tensor], Tensor] = torch.compile(model.loss) if config.compile else model.loss

    def step(self) -> Step:
        """Learn from the next batch. Numbers that are not finite raise before any weight has changed."""
        self.random_before = torch.get_rng_state()
        inputs, targets = self.load_batch(self._coming_batch())
        loss = self._accumulate(inputs, targets)
        length = gradient_norm(self.team.parameters).item()
        if not (math.isfinite(loss) and math.isfinite(length)):
            self.team.zero_grad()
            what = f"the loss is {loss}" if not math.isfinite(loss) else f"the gradients' norm is {length}"
            raise NotFiniteError(f"{what} at step {self.done + 1}, batch {self.next_batch}")
        if self.config.clip is not None and length > self.config.clip:
            torch._foreach_mul_([p.grad for p in self.team.parameters if p.grad is not None], self.config.clip / length)
        rate = self._schedule.at(self.done)
        self.team.step(rate)
        self.team.zero_grad()
        self.done += 1
        self.next_batch += 1
        return Step(self.done, loss, length, rate, targets.numel())

    def load_batch(self, number: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of a batch, on the model's device."""
        device = self.model.embedding.weight.device
        inputs, targets = self.batches.batch(number)
        return torch.from_numpy(inputs).to(device), torch.from_numpy(targets).to(device)

    def _coming_batch(self) -> int:
        while self.next_batch in self.passed_over:
            self.next_batch += 1
        return self.next_batch

    def _accumulate(self, inputs: Tensor, targets: Tensor) -> float:
        """Put the gradients of the mean loss over the whole batch on the weights, a part of it at a time."""
        self.model.train()
        size = self.config.micro_batch or len(inputs)
        total = 0.0
        for part, wanted in zip(inputs.split(size), targets.split(size), strict=True):
            with self.autocast():
                # Each part's mean counts by its share of the tokens, so that the parts add up to the whole's mean.
                loss = self._loss(part, wanted) * (wanted.numel() / targets.numel())
            loss.backward()
            total += loss.item()
        return total

    def last_batch(self) -> int:
        """The number of the batch that was learnt from last; -1 before the first."""
        number = self.next_batch - 1
        while number in self.passed_over:
            number -= 1
        return number

    def state(self) -> tuple[Tensors, dict[str, Any]]:
        """Everything that the next step depends on: tensors, and facts for JSON.

        Weights that are not finite, because a finite gradient times a huge rate was not, raise: nothing good can come
        of them any more.
        """
        if not all(bool(weight.isfinite().all()) for weight in self.model.parameters()):
            raise NotFiniteError(f"a weight is not finite after step {self.done}, batch {self.last_batch()}")
        tensors = {
            "model": dict(self.model.state_dict()),
            "optimiser": self.team.tensors(),
            "random": {"torch": torch.get_rng_state()},
        }
        return tensors, {"step": self.done, "next_batch": self.next_batch, "passed_over": self.passed_over}

    def restore(self, tensors: Tensors, facts: Mapping[str, Any]) -> None:
        """Be again where `state` was taken."""
        try:
            self.model.load_state_dict(tensors["model"])
            self.team.load(tensors["optimiser"])
            torch.set_rng_state(tensors["random"]["torch"])
            self.done, self.next_batch = facts["step"], facts["next_batch"]
            self.passed_over = sorted({*self.passed_over, *facts["passed_over"]})
        except (KeyError, RuntimeError) as error:
            raise CheckpointError(f"the checkpoint does not fit the model of this run: {error}") from error
