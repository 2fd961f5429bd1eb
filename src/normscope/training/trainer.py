"""The trainer: one optimizer step at a time, and the state to checkpoint."""

import hashlib
import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from normscope.blocks.lora import load_trained, trained_tensors
from normscope.errors import CheckpointError, NonFiniteError, WeightsError
from normscope.interop.files.lazy_tensors import tensor_specs
from normscope.models.gpt import GPT
from normscope.ops.cross_entropy import IGNORE_INDEX
from normscope.ops.finite import is_finite
from normscope.runtime.rng import preserve_rng, rng_state, set_rng_state
from normscope.storage.tensor_spec import TensorSpec
from normscope.training.config import TrainConfig
from normscope.training.optimizers.groups import OptimizerGroup, global_norm
from normscope.training.running_statistics import all_finite, preserve_tensors, running_statistics

Tensors = dict[str, dict[str, Tensor]]
MAX_GRAD_NORM = math.sqrt(torch.finfo(torch.float32).max)
"""Largest usable gradient norm: AdamW squares gradients, and a larger one overflows."""


class BatchSource(Protocol):
    """Batches by index: the same index always gives the same batch, so a position in the data is one number.

    A batch has inputs, targets and, if rows hold several documents, positions.
    """

    def batch(self, number: int) -> tuple[np.ndarray, ...]: ...


@dataclass(frozen=True)
class StepResult:
    """The result of one optimizer step.

    Args:
        number: Steps done, including this one.
        loss: Training loss in nats per token, before the update.
        grad_norm: Global gradient norm, before clipping.
        lr_scale: Learning rate as a fraction of its peak.
        tokens: Number of tokens in the batch.
    """

    number: int
    loss: float
    grad_norm: float
    lr_scale: float
    tokens: int


class Trainer:
    """Model, optimizer and position in the data.

    Args:
        model: The model, on its device.
        config: The training configuration.
        batches: The training batches.
        autocast: Returns the autocast context for forward passes.
    """

    def __init__(
        self,
        model: GPT,
        config: TrainConfig,
        batches: BatchSource,
        autocast: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.model, self.config, self.batches, self.autocast = model, config, batches, autocast
        self.optimizer = OptimizerGroup(model, config)
        self.steps_done = 0
        self.next_batch = 0
        self.skipped_batches: list[int] = []
        self.rng_before = rng_state(self.device)  # before the last attempted step
        self._statistics = list(running_statistics(model).values())
        self._schedule = config.lr_schedule()
        self._loss: Callable[..., Tensor] = torch.compile(model.loss) if config.compile else model.loss

    def step(self) -> StepResult:
        """Train on the next batch. If the loss or a gradient is not finite, raise and leave the model unchanged."""
        self.rng_before = rng_state(self.device)
        statistics_before = [tensor.clone() for tensor in self._statistics]
        batch = self.load_batch(self._next_batch_index())
        loss = self._accumulate(*batch)
        norm = global_norm(self.optimizer.gradients)
        problem = self._nonfinite_problem(loss, norm)
        if problem is not None:
            self.optimizer.zero_grad()
            for tensor, values in zip(self._statistics, statistics_before, strict=True):
                tensor.copy_(values)
            raise NonFiniteError(f"{problem} at step {self.steps_done + 1}, batch {self.next_batch}")
        if self.config.grad_clip is not None and norm > self.config.grad_clip:
            torch._foreach_mul_(self.optimizer.gradients, self.config.grad_clip / norm)
        lr_scale = self._schedule.lr_scale(self.steps_done)
        self.optimizer.step(lr_scale)
        self.optimizer.zero_grad()
        self.steps_done += 1
        self.next_batch += 1
        return StepResult(self.steps_done, loss, norm, lr_scale, batch[1].numel())

    def step_digest(self) -> str:
        """A checksum of what the next step computes: loss, gradients, gradient norm and Muon's updates.

        It changes nothing, so it can be computed twice with different numbers of threads: equal checksums mean equal
        bits, since a different order of summation would round some of the many values differently.
        """
        zeros = [weight for weight in self.optimizer.parameters if weight.dim() > 1 and not weight.any()]
        digest, generator = hashlib.blake2b(), torch.Generator(self.device).manual_seed(0)
        with preserve_rng(self.device), preserve_tensors([*zeros, *self._statistics]):
            with torch.no_grad():
                for weight in zeros:  # no gradient passes through zeros
                    weight.normal_(0, 0.02, generator=generator)
            try:
                loss = self._accumulate(*self.load_batch(self._next_batch_index()))
                digest.update(repr((loss, global_norm(self.optimizer.gradients))).encode())
                for tensor in (*self.optimizer.gradients, *self._statistics, *self.optimizer.updates()):
                    digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
            finally:
                self.optimizer.zero_grad()
        return digest.hexdigest()

    def is_bitwise_equal(self, threads: int, reference: int) -> bool:
        """Whether the next step is bitwise identical with `threads` and with `reference` threads."""
        before = torch.get_num_threads()
        try:
            torch.set_num_threads(threads)
            one = self.step_digest()
            torch.set_num_threads(reference)
            return one == self.step_digest()
        finally:
            torch.set_num_threads(before)

    @property
    def device(self) -> torch.device:
        return self.model.embedding.weight.device

    def load_batch(self, index: int) -> tuple[Tensor, ...]:
        """The tensors of a batch, on the model's device."""
        return tuple(torch.from_numpy(array).to(self.device) for array in self.batches.batch(index))

    def _nonfinite_problem(self, loss: float, norm: float) -> str | None:
        """What is not finite after the backward pass, or would overflow in the update; None if nothing."""
        if not math.isfinite(loss):
            return f"the loss is {loss}"
        if not math.isfinite(norm) or min(norm, self.config.grad_clip or norm) > MAX_GRAD_NORM:
            return f"the gradient norm is {norm:.4g}"
        return None if all_finite(self._statistics) else "a running statistic is not finite"

    def _next_batch_index(self) -> int:
        while self.next_batch in self.skipped_batches:
            self.next_batch += 1
        return self.next_batch

    def _accumulate(self, *batch: Tensor) -> float:
        """Accumulate the gradients of the mean loss over all micro-batches; returns that loss."""
        self.model.train()
        size = self.config.micro_batch or len(batch[0])
        total, count = 0.0, int((batch[1] != IGNORE_INDEX).sum())
        for part in zip(*(tensor.split(size) for tensor in batch), strict=True):
            with self.autocast():
                # Weighted by its fraction of the targets, the micro-batch losses add up to the mean of the batch.
                loss = self._loss(*part) * (int((part[1] != IGNORE_INDEX).sum()) / count)
            loss.backward()
            total += loss.item()
        return total

    def last_batch(self) -> int:
        """Index of the batch of the last step; -1 before the first step."""
        number = self.next_batch - 1
        while number in self.skipped_batches:
            number -= 1
        return number

    def state(self) -> tuple[Tensors, dict[str, Any]]:
        """Everything the next step depends on: tensors by group, and values for JSON.

        Raises if a weight is not finite, which happens when a finite gradient times a huge learning rate overflows.
        """
        model = trained_tensors(self.model)
        if not all(is_finite(tensor) for tensor in model.values()):
            raise NonFiniteError(f"a weight is not finite after step {self.steps_done}, batch {self.last_batch()}")
        position = {"step": self.steps_done, "next_batch": self.next_batch, "skipped_batches": self.skipped_batches}
        return {"model": model, "optimizer": self.optimizer.tensors(), "rng": rng_state(self.device)}, position

    def expected_tensors(self, step: int) -> dict[str, dict[str, TensorSpec]]:
        """Shapes and dtypes of the tensors that `state` returns after this many steps."""
        optimizer = self.optimizer.expected_tensors() if step else {}
        return {
            "model": tensor_specs(trained_tensors(self.model)),
            "optimizer": tensor_specs(optimizer),
            "rng": tensor_specs(rng_state(self.device)),
        }

    def restore(self, tensors: Tensors, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        try:
            load_trained(self.model, tensors["model"])
            self.optimizer.load(tensors["optimizer"])
            set_rng_state(tensors["rng"], self.device)
            self.steps_done, self.next_batch = state["step"], state["next_batch"]
            self.skipped_batches = sorted({*self.skipped_batches, *state["skipped_batches"]})
        except (KeyError, RuntimeError, TypeError, WeightsError) as error:
            raise CheckpointError(f"the checkpoint does not match the model of this run: {error}") from error
