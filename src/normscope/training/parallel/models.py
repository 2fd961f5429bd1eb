"""One model on several ranks: replicated (DDP) or sharded (FSDP2). Both add up the gradients of all ranks.

Each rank computes the loss of its rows, divided by the targets of the whole batch, so that the sum over the ranks is
the mean of the batch: the loss and the gradients are those of one process, up to rounding.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from normscope.models.gpt import GPT
from normscope.ops.cross_entropy import IGNORE_INDEX
from normscope.ops.norm.distributed import computing_alone
from normscope.runs.initial_weights import set_trainable
from normscope.runtime.ranks import Ranks, rank_errors
from normscope.runtime.rng import preserve_rng
from normscope.training.config import TrainConfig
from normscope.training.parallel.sharded_optimizer import full_tensor, is_sharded

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule


def parallel_model(model: GPT, config: TrainConfig, ranks: Ranks) -> "ParallelModel":
    """Prepare a model for these ranks; FSDP2 replaces its parameters."""
    loss = torch.compile(model.loss) if config.compile else model.loss
    if ranks.size == 1:
        return OneProcess(model, loss)
    return Shards(model, loss, ranks) if config.parallel == "fsdp" else Replicas(model, loss)


class ParallelModel(Protocol):
    """How the ranks compute with a model."""

    def loss(self, share: float, *batch: Tensor) -> Tensor:
        """The loss of these rows, times their share of the targets of the batch."""

    def gradient_sync(self, is_last: bool) -> AbstractContextManager[None]:
        """Context manager of a backward pass, which adds up the gradients of the ranks if it is the last of a step."""

    @property
    def validation_loss(self) -> Callable[..., Tensor] | None:
        """How to compute the loss of a batch; None if the model itself can."""


class _Loss(nn.Module):
    """The loss as a forward pass, which is what DDP and FSDP2 need."""

    def __init__(self, model: GPT, loss: Callable[..., Tensor]) -> None:
        super().__init__()
        self.model = model
        self._loss = loss

    def forward(self, share: float, *batch: Tensor) -> Tensor:
        tokens, targets, *more = batch
        if bool((targets != IGNORE_INDEX).any()):
            return self._loss(*batch) * share
        # A rank without targets, or without rows, takes part in the sums of the others, and adds nothing.
        options = {"positions": more[0]} if more and len(tokens) else {}
        nothing: Tensor = self.model(tokens, **options).sum() * 0.0
        return nothing


class OneProcess:
    """A model that one process computes alone."""

    def __init__(self, model: GPT, loss: Callable[..., Tensor]) -> None:
        self._loss = _Loss(model, loss)

    def loss(self, share: float, *batch: Tensor) -> Tensor:
        loss: Tensor = self._loss(share, *batch)
        return loss

    def gradient_sync(self, is_last: bool) -> AbstractContextManager[None]:
        return nullcontext()

    @property
    def validation_loss(self) -> Callable[..., Tensor] | None:
        return None


class Replicas(OneProcess):
    """DistributedDataParallel: a copy of the model on each rank. Gradients are added up while the backward pass runs.

    Running statistics are not synchronized in the forward pass: those of rank 0 count (see `Trainer.step`).
    """

    def __init__(self, model: GPT, loss: Callable[..., Tensor]) -> None:
        super().__init__(model, loss)
        with rank_errors():
            self._ddp = nn.parallel.DistributedDataParallel(
                self._loss, forward_sync_buffers=False, gradient_as_bucket_view=True
            )
        self._ddp.register_comm_hook(None, lambda _, bucket: _add_gradients(bucket))

    def loss(self, share: float, *batch: Tensor) -> Tensor:
        loss: Tensor = self._ddp(share, *batch)
        return loss

    def gradient_sync(self, is_last: bool) -> AbstractContextManager[None]:
        quiet: AbstractContextManager[None] = nullcontext() if is_last else self._ddp.no_sync()
        return quiet

    @property
    def validation_loss(self) -> Callable[..., Tensor] | None:
        return partial(self._loss, 1.0)  # also of no rows, since norms with sync=True wait for every rank


def _add_gradients(bucket: Any) -> torch.futures.Future[Tensor]:
    """Add up a bucket of gradients; DDP by itself would divide by the number of ranks."""
    future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    added: torch.futures.Future[Tensor] = future.then(lambda done: done.value()[0])
    return added


class Shards(OneProcess):
    """FSDP2: each rank keeps a part of the rows of every parameter, and gathers a block's when it computes the block.

    Gradients are added up after every backward pass, so that no rank has to keep all of them.
    """

    def __init__(self, model: GPT, loss: Callable[..., Tensor], ranks: Ranks) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        super().__init__(model, loss)
        with rank_errors():
            mesh = init_device_mesh(model.embedding.weight.device.type, (ranks.size,))
            for part in (*model.blocks, self._loss):
                sharded = fully_shard(part, mesh=mesh)
                sharded.set_gradient_divide_factor(1.0)  # add up: by itself FSDP2 takes the mean of the ranks
                sharded.set_force_sum_reduction_for_comms(True)  # gloo can only add

    @property
    def validation_loss(self) -> Callable[..., Tensor] | None:
        return self._validation_loss

    def _validation_loss(self, *batch: Tensor) -> Tensor:
        loss = self.loss(1.0, *batch)
        cast("FSDPModule", self._loss).reshard()  # which a backward pass would do
        return loss


@contextmanager
def full_model(model: GPT, config: TrainConfig, ranks: Ranks) -> Iterator[GPT | None]:
    """The model with all of its parameters on rank 0, which computes with it alone; None on the other ranks.

    All ranks have to take part, for their parts of a sharded model.
    """
    found = model
    if is_sharded(model.embedding.weight):
        found = _unsharded_copy(model, config, ranks)
    with computing_alone():
        yield found if ranks.is_main else None


def _unsharded_copy(model: GPT, config: TrainConfig, ranks: Ranks) -> GPT:
    """A copy of a sharded model in eval mode, on rank 0; the others only send their parts."""
    weight, copy = model.embedding.weight, model
    if ranks.is_main:
        with preserve_rng(weight.device):
            copy = GPT(model.config)
            set_trainable(copy, config)
            copy.to(weight.device, weight.dtype)
    parts = copy.state_dict() if ranks.is_main else {}
    for name, tensor in model.state_dict().items():
        gathered = full_tensor(tensor)
        if name in parts:
            parts[name].copy_(gathered)
    return copy.eval() if ranks.is_main else copy
