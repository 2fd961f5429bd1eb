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
from normscope.runtime.ranks import ALONE, Ranks
from normscope.runtime.rng import preserve_rng, rng_name, rng_state, rng_state_bytes, seed_rank, set_rng_state
from normscope.storage.tensor_spec import TensorSpec
from normscope.training.config import TrainConfig
from normscope.training.optimizers.groups import OptimizerGroup
from normscope.training.parallel.dealing import Broadcasts
from normscope.training.parallel.models import full_model, parallel_model
from normscope.training.parallel.sharded_optimizer import (
    ShardedOptimizerGroup,
    full_tensor,
    is_sharded,
    local_part,
    own_rows,
)
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
        ranks: The processes that train together. Each computes its rows of every micro-batch.
    """

    def __init__(
        self,
        model: GPT,
        config: TrainConfig,
        batches: BatchSource,
        autocast: Callable[[], AbstractContextManager[None]] = nullcontext,
        ranks: Ranks = ALONE,
    ) -> None:
        self.model, self.config, self.batches, self.autocast, self.ranks = model, config, batches, autocast, ranks
        self.parallel = parallel_model(model, config, ranks)
        sharded = is_sharded(model.embedding.weight)
        self.optimizer = (ShardedOptimizerGroup if sharded else OptimizerGroup)(model, config, ranks)
        self.steps_done = 0
        self.next_batch = 0
        self.skipped_batches: list[int] = []
        self.rng_before = rng_state(self.device)  # before the last attempted step
        self._statistics = list(running_statistics(model).values())
        self._schedule = config.lr_schedule()

    def step(self) -> StepResult:
        """Train on the next batch. If the loss or a gradient is not finite, raise and leave the model unchanged."""
        self.rng_before = rng_state(self.device)
        statistics_before = [tensor.clone() for tensor in self._statistics]
        batch = self.load_batch(self._next_batch_index())
        loss = self._accumulate(*batch)
        norm = self.optimizer.gradient_norm()
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
                digest.update(repr((loss, self.optimizer.gradient_norm())).encode())
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
        """The tensors of a batch, on the CPU."""
        return tuple(torch.from_numpy(array) for array in self.batches.batch(index))

    def _nonfinite_problem(self, loss: float, norm: float) -> str | None:
        """What is not finite after the backward pass, or would overflow in the update; None if nothing."""
        if not math.isfinite(loss):
            return f"the loss is {loss}"
        if not math.isfinite(norm) or min(norm, self.config.grad_clip or norm) > MAX_GRAD_NORM:
            return f"the gradient norm is {norm:.4g}"
        is_wrong = bool(self._statistics) and self.ranks.any(not all_finite(self._statistics))
        return "a running statistic is not finite" if is_wrong else None

    def _next_batch_index(self) -> int:
        while self.next_batch in self.skipped_batches:
            self.next_batch += 1
        return self.next_batch

    def _accumulate(self, *batch: Tensor) -> float:
        """Accumulate the gradients of the mean loss over all micro-batches and ranks; returns that loss."""
        self.model.train()
        size = self.config.micro_batch or len(batch[0])
        total, count = 0.0, int((batch[1] != IGNORE_INDEX).sum())
        parts = list(zip(*(tensor.split(size) for tensor in batch), strict=True))
        for number, whole_part in enumerate(parts, 1):
            rows = self.ranks.part(len(whole_part[0]))
            part = tuple(tensor[rows].to(self.device) for tensor in whole_part)
            # Weighted by its fraction of the targets, the losses of all parts add up to the mean of the batch.
            share = int((part[1] != IGNORE_INDEX).sum()) / count
            with self.parallel.gradient_sync(is_last=number == len(parts)):
                with self.autocast():
                    loss = self.parallel.loss(share, *part)
                loss.backward()
            total += loss.item()
        self._share_statistics()
        return self.ranks.sum(total)[0]

    def _share_statistics(self) -> None:
        """Running statistics are those of rank 0, unless the norms synchronize them: then they are equal anyway."""
        if self.ranks.size > 1:
            broadcasts = Broadcasts(self.ranks)
            broadcasts.start((tensor, 0) for tensor in self._statistics)
            broadcasts.wait()

    def warm_up_reducer(self) -> None:
        """Compute the gradients of a batch once, and forget them.

        DDP arranges the gradients in new buckets after its first backward pass. That changes the order of sums, so it
        has to happen before the first step, whether the run is new or resumed.
        """
        if self.ranks.size == 1 or self.config.parallel != "ddp":
            return
        with preserve_rng(self.device), preserve_tensors(self._statistics):
            self._accumulate(*self.load_batch(self._next_batch_index()))
        self.optimizer.zero_grad()

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
        model = self._own_weights()
        if self.ranks.any(not all(is_finite(tensor) for tensor in model.values())):
            raise NonFiniteError(f"a weight is not finite after step {self.steps_done}, batch {self.last_batch()}")
        position = {"step": self.steps_done, "next_batch": self.next_batch, "skipped_batches": self.skipped_batches}
        return {"model": model, "optimizer": self.optimizer.tensors(), "rng": self._rng_state()}, position

    def _own_weights(self) -> dict[str, Tensor]:
        """The trained weights that this rank saves."""
        own = {}
        for i, (name, tensor) in enumerate(trained_tensors(self.model).items()):
            gathered = full_tensor(tensor)
            if i % self.ranks.size == self.ranks.rank:
                own[name] = gathered
        return own

    def full_model(self) -> AbstractContextManager[GPT | None]:
        """Context manager that gives rank 0 the whole model, to compute with alone; all ranks have to take part."""
        return full_model(self.model, self.config, self.ranks)

    def _rng_state(self) -> dict[str, Tensor]:
        return {rng_name(name, self.ranks.rank): state for name, state in rng_state(self.device).items()}

    def expected_tensors(
        self, step: int, saved_ranks: int = 1, saved_device: str | None = None
    ) -> dict[str, dict[str, TensorSpec]]:
        """Shapes and dtypes of the tensors that `state` returns after this many steps, on all ranks that saved them.

        `saved_device` is the type of their device, if not that of this trainer.
        """
        rng = tensor_specs(rng_state(self.device))
        if saved_device not in (None, self.device.type):
            rng = {name: TensorSpec((size,), torch.uint8) for name, size in rng_state_bytes(saved_device).items()}
        return {
            "model": tensor_specs(trained_tensors(self.model)),
            "optimizer": self.optimizer.expected_tensors() if step else {},
            "rng": {rng_name(name, rank): spec for rank in range(saved_ranks) for name, spec in rng.items()},
        }

    def own_tensors(self, step: int) -> dict[str, set[str]]:
        """What of `expected_tensors` this rank restores besides all weights: its own optimizer state and RNG state."""
        return {
            "optimizer": self.optimizer.own_tensors() if step else set(),
            "rng": {rng_name(name, self.ranks.rank) for name in rng_state(self.device)},
        }

    def restore(self, tensors: Tensors, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        try:
            self._load_weights(tensors["model"])
            self.optimizer.load(tensors["optimizer"])
            self._restore_rng(tensors["rng"], state["step"])
            self.steps_done, self.next_batch = state["step"], state["next_batch"]
            self.skipped_batches = sorted({*self.skipped_batches, *state["skipped_batches"]})
        except (KeyError, RuntimeError, TypeError, WeightsError) as error:
            raise CheckpointError(f"the checkpoint does not match the model of this run: {error}") from error

    def _load_weights(self, tensors: Mapping[str, Tensor]) -> None:
        if not is_sharded(self.model.embedding.weight):
            load_trained(self.model, tensors)
            return
        with torch.no_grad():
            for name, tensor in trained_tensors(self.model).items():
                if is_sharded(tensor):
                    local_part(tensor).copy_(own_rows(tensors[name], tensor))
                else:
                    tensor.copy_(tensors[name])

    def _restore_rng(self, tensors: Mapping[str, Tensor], step: int) -> None:
        names = {name: rng_name(name, self.ranks.rank) for name in rng_state(self.device)}
        saved = {name: tensors[full_name] for name, full_name in names.items() if full_name in tensors}
        if len(saved) < len(names):  # the run had fewer ranks, or another type of device
            seed_rank(self.config.seed, step, self.ranks.rank)
        if saved:
            set_rng_state(saved, self.device)
