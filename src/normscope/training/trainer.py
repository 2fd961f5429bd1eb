"""The trainer: a model, its optimisers and its place in the data. One call is one step."""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from normscope.errors import CheckpointError, NonFiniteError
from normscope.models.gpt import GPT
from normscope.runs.tensor_specs import Spec, specs
from normscope.runtime.rng import random_state, set_random_state
from normscope.training.config import TrainConfig
from normscope.training.optimizers.groups import Team, gradient_norm
from normscope.training.running_statistics import are_finite, put_back, running_statistics

Tensors = dict[str, dict[str, Tensor]]
LARGEST_NORM = math.sqrt(torch.finfo(torch.float32).max)
"""Of gradients that weights learn from: AdamW remembers squares, and a larger one would be infinite."""


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
        self.random_before = random_state(self.device)  # as it was before the last step was tried
        self._statistics = list(running_statistics(model).values())
        self._schedule = config.rates()
        self._loss: Callable[[Tensor, Tensor], Tensor] = torch.compile(model.loss) if config.compile else model.loss

    def step(self) -> Step:
        """Learn from the next batch. Numbers that are not finite raise, and the model is what it was before."""
        self.random_before = random_state(self.device)
        statistics_before = [tensor.clone() for tensor in self._statistics]
        inputs, targets = self.load_batch(self._coming_batch())
        loss = self._accumulate(inputs, targets)
        length = gradient_norm(self.team.parameters)
        fault = self._fault(loss, length)
        if fault is not None:
            self.team.zero_grad()
            put_back(self._statistics, statistics_before)
            raise NonFiniteError(f"{fault} at step {self.done + 1}, batch {self.next_batch}")
        if self.config.clip is not None and length > self.config.clip:
            torch._foreach_mul_([p.grad for p in self.team.parameters if p.grad is not None], self.config.clip / length)
        rate = self._schedule.at(self.done)
        self.team.step(rate)
        self.team.zero_grad()
        self.done += 1
        self.next_batch += 1
        return Step(self.done, loss, length, rate, targets.numel())

    def digest(self) -> str:
        """A checksum of what a step computes: loss, gradients, their norm, and what Muon makes of them.

        It is that of the next step, but for matrices of zeros. Nothing is changed, so it can be taken twice, with
        different numbers of threads: the same checksum means the same bits. A sum in another order would round
        otherwise in some of so many numbers.
        """
        random_before = random_state(self.device)
        statistics_before = [tensor.clone() for tensor in self._statistics]
        found = hashlib.blake2b()
        try:
            with self._without_zeros():
                loss = self._accumulate(*self.load_batch(self._coming_batch()))
                found.update(repr((loss, gradient_norm(self.team.parameters))).encode())
                gradients = [weight.grad for weight in self.team.parameters if weight.grad is not None]
                for tensor in (*gradients, *self._statistics, *self.team.directions()):
                    found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        finally:
            self.team.zero_grad()
            put_back(self._statistics, statistics_before)
            set_random_state(random_before, self.device)
        return found.hexdigest()

    @contextmanager
    def _without_zeros(self) -> Iterator[None]:
        """Fill matrices of zeros with numbers for a while: through them no gradient passes that could show a bit."""
        zeros = [weight for weight in self.team.parameters if weight.dim() > 1 and not weight.any()]
        before, chance = [weight.detach().clone() for weight in zeros], torch.Generator(self.device).manual_seed(0)
        with torch.no_grad():
            for weight in zeros:
                weight.normal_(0, 0.02, generator=chance)
        try:
            yield
        finally:
            with torch.no_grad():
                for weight, old in zip(zeros, before, strict=True):
                    weight.copy_(old)

    def keeps_bits(self, threads: int, reference: int) -> bool:
        """Whether the next step has the same bits with so many threads as with another number of them."""
        before = torch.get_num_threads()
        try:
            torch.set_num_threads(threads)
            one = self.digest()
            torch.set_num_threads(reference)
            return one == self.digest()
        finally:
            torch.set_num_threads(before)

    @property
    def device(self) -> torch.device:
        return self.model.embedding.weight.device

    def load_batch(self, number: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of a batch, on the model's device."""
        inputs, targets = self.batches.batch(number)
        return torch.from_numpy(inputs).to(self.device), torch.from_numpy(targets).to(self.device)

    def _fault(self, loss: float, length: float) -> str | None:
        """What is not finite after both passes, or would not be after the step; None if all is well."""
        if not math.isfinite(loss):
            return f"the loss is {loss}"
        if not math.isfinite(length) or min(length, self.config.clip or length) > LARGEST_NORM:
            return f"the gradients' norm is {length:.4g}"
        return None if are_finite(self._statistics) else "a running statistic is not finite"

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
        model = dict(self.model.state_dict())
        if not all(bool(tensor.isfinite().all()) for tensor in model.values()):
            raise NonFiniteError(f"a weight is not finite after step {self.done}, batch {self.last_batch()}")
        tensors = {"model": model, "optimiser": self.team.tensors(), "random": random_state(self.device)}
        return tensors, {"step": self.done, "next_batch": self.next_batch, "passed_over": self.passed_over}

    def expected(self, step: int) -> dict[str, dict[str, Spec]]:
        """The names, shapes and types of the tensors that `state` gives after so many steps."""
        optimiser = self.team.expected() if step else {}
        return {
            "model": specs(self.model.state_dict()),
            "optimiser": specs(optimiser),
            "random": specs(random_state(self.device)),
        }

    def restore(self, tensors: Tensors, facts: Mapping[str, Any]) -> None:
        """Be again where `state` was taken."""
        try:
            self.model.load_state_dict(tensors["model"])
            self.team.load(tensors["optimiser"])
            set_random_state(tensors["random"], self.device)
            self.done, self.next_batch = facts["step"], facts["next_batch"]
            self.passed_over = sorted({*self.passed_over, *facts["passed_over"]})
        except (KeyError, RuntimeError, TypeError) as error:
            raise CheckpointError(f"the checkpoint does not fit the model of this run: {error}") from error
