"""What ranks do under DistributedDataParallel, or without it: healthy training, and one fault each."""

import contextlib
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, AdamW, Optimizer

from normscope.diagnostics.probe import Xray
from tests.diagnostics.ranks.launch import RankCase
from tests.support import randn

CASES: list[RankCase] = []
Run = Callable[[int], Xray | None]


def case_of(cases: list[RankCase]) -> Callable[..., Callable[[Run], Run]]:
    """Return a decorator that adds a function to these cases; without a finding, as a healthy one."""

    def case(finding: str = "", severity: str = "warning", consequences: tuple[str, ...] = ()) -> Callable[[Run], Run]:
        def add(run: Run) -> Run:
            cases.append(RankCase(run, finding, severity, consequences))
            return run

        return add

    return case


case = case_of(CASES)


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 3))


def with_norms() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 3))


def data(rank: int, step: int, size: int = 32) -> tuple[Tensor, Tensor]:
    """A batch of this rank."""
    x = randn(size, 6, seed=100 * step + rank, dtype=torch.float32)
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 1).long()


def loss_of(model: nn.Module, rank: int, step: int, size: int = 32) -> Tensor:
    x, y = data(rank, step, size)
    return F.cross_entropy(model(x), y)


def train(model: nn.Module, optimizer: Optimizer, rank: int, steps: int = 2) -> None:
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, rank, step).backward()
        optimizer.step()


def adamw(model: nn.Module, lr: float = 1e-3) -> AdamW:
    return AdamW(model.parameters(), lr=lr)


@case()
def ddp(rank: int) -> Xray:
    """Given the wrapper."""
    model = DistributedDataParallel(mlp())
    with Xray(model) as x:
        train(model, adamw(model), rank)
    return x


@case()
def ddp_inner_model(rank: int) -> Xray:
    """Given the model inside, whose passes go through the wrapper."""
    inner = mlp()
    model = DistributedDataParallel(inner)
    with Xray(inner) as x:
        train(model, adamw(model), rank)
    return x


@case()
def ddp_no_sync(rank: int) -> Xray:
    """Accumulation; the block ends in the middle of one."""
    model = DistributedDataParallel(mlp())
    optimizer = adamw(model)
    with Xray(model) as x:
        for step in range(5):
            with contextlib.nullcontext() if step % 2 else model.no_sync():
                loss_of(model, rank, step).backward()
            if step % 2:
                optimizer.step()
                optimizer.zero_grad()
    return x


@case()
def ddp_uneven_batches(rank: int) -> Xray:
    model = DistributedDataParallel(mlp())
    optimizer = adamw(model)
    with Xray(model) as x:
        for step in range(2):
            loss_of(model, rank, step, size=32 - 8 * rank * step).backward()
            optimizer.step()
            optimizer.zero_grad()
    return x


@case()
def ddp_batch_norm(rank: int) -> Xray:
    model = DistributedDataParallel(with_norms())
    with Xray(model) as x:
        train(model, adamw(model), rank)
    return x


@case("running-statistics-differ-between-ranks", "note")
def ddp_batch_norm_without_broadcast(rank: int) -> Xray:
    model = DistributedDataParallel(with_norms(), forward_sync_buffers=False)
    with Xray(model) as x:
        train(model, adamw(model), rank)
    return x


@case("weights-differ-between-ranks", "error")
def ddp_weight_changed_on_one_rank(rank: int) -> Xray:
    model = DistributedDataParallel(mlp())
    with Xray(model) as x:
        train(model, adamw(model), rank)
        if rank == 1:
            with torch.no_grad():
                model.module[2].weight[3, 5] += 0.1
    return x


@case("weights-differ-between-ranks")
def different_seeds(rank: int) -> Xray:
    torch.manual_seed(rank)
    model = mlp()
    with Xray(model) as x:
        train(model, adamw(model), rank)
    return x


@case("gradients-not-reduced", "error")
def ddp_bypassed(rank: int) -> Xray:
    model = DistributedDataParallel(mlp())
    with Xray(model) as x:
        train(model.module, adamw(model), rank)
    return x


@case("gradients-not-reduced", "error")
def ddp_no_sync_never_left(rank: int) -> Xray:
    model = DistributedDataParallel(mlp())
    with Xray(model) as x, model.no_sync():
        train(model, adamw(model), rank)
    return x


@case("same-data-on-ranks")
def same_data(rank: int) -> Xray:
    model = DistributedDataParallel(mlp())
    with Xray(model) as x:
        train(model, adamw(model), 0)
    return x


@case("hyperparameters-differ-between-ranks", "error")
def different_rates(rank: int) -> Xray:
    model = DistributedDataParallel(mlp())
    with Xray(model) as x:
        train(model, adamw(model, lr=1e-3 * (1 + rank)), rank)
    return x


@case("steps-differ-between-ranks", "error")
def steps_on_one_rank(rank: int) -> Xray:
    model = DistributedDataParallel(mlp())
    optimizer = SGD(model.parameters(), lr=0.1)
    with Xray(model) as x:
        for step in range(2):
            optimizer.zero_grad()
            loss_of(model, rank, step).backward()
            if rank == 0 or step == 0:
                optimizer.step()
    return x


@case("mode-differs-between-ranks")
def eval_on_one_rank(rank: int) -> Xray:
    model = DistributedDataParallel(mlp())
    model.train(rank != 1)
    with Xray(model) as x:
        train(model, adamw(model), rank)
    return x


@case("buffers-differ-between-ranks")
def different_buffers(rank: int) -> Xray:
    inner = mlp()
    inner.register_buffer("scale", torch.full((3,), 1.0 + rank))
    model = DistributedDataParallel(inner, forward_sync_buffers=False)
    with Xray(model) as x:
        train(model, adamw(model), rank)
    return x


@case()
def one_rank_alone(rank: int) -> Xray | None:
    """Rank 0 alone takes an x-ray; the others train on."""
    model = DistributedDataParallel(mlp())
    optimizer = adamw(model)
    if rank:
        train(model, optimizer, rank)
        dist.barrier()
        return None
    with Xray(model) as x:
        train(model, optimizer, rank)
    dist.barrier()
    return x
