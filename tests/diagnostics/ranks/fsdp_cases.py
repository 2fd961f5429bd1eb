"""What ranks do with a model that FSDP2 shards: healthy training, and one fault each."""

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

from normscope.diagnostics.probe import Xray
from tests.diagnostics.ranks.ddp_cases import adamw, case_of, loss_of, mlp, train, with_norms
from tests.diagnostics.ranks.launch import RankCase

CASES: list[RankCase] = []
case = case_of(CASES)


class Tied(nn.Module):
    """A language model with a tied head, and a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.block, self.head = nn.Embedding(16, 8), mlp8(), nn.Linear(8, 16, bias=False)
        self.scale = nn.Parameter(torch.ones(8))
        self.head.weight = self.table.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.block(self.table(tokens)) * self.scale)
        return result


def mlp8() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8))


def shard(model: nn.Module, *parts: str) -> nn.Module:
    for name in parts:
        fully_shard(model.get_submodule(name))
    fully_shard(model)
    return model


@case()
def fsdp(rank: int) -> Xray:
    model = shard(mlp(), "0", "2")
    optimizer = adamw(model)
    with Xray(model) as x:
        train(model, optimizer, rank)
    return x


@case()
def fsdp_at_the_root_alone(rank: int) -> Xray:
    """The root keeps its parameters whole after an evaluation, which comes before the x-ray."""
    model = shard(mlp())
    optimizer = adamw(model)
    with torch.no_grad():
        loss_of(model, rank, 7)
    with Xray(model) as x:
        train(model, optimizer, rank)
        with torch.no_grad():
            loss_of(model, rank, 7)
    return x


@case()
def fsdp_tied(rank: int) -> Xray:
    model = shard(Tied(), "block")
    optimizer = adamw(model)
    with Xray(model) as x:
        for step in range(2):
            tokens = torch.randint(16, (4, 10), generator=torch.Generator().manual_seed(10 * step + rank))
            optimizer.zero_grad()
            F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
            optimizer.step()
    return x


@case()
def fsdp_accumulation(rank: int) -> Xray:
    model = shard(mlp(), "0")
    optimizer = adamw(model)
    with Xray(model) as x:
        for step in range(4):
            model.set_requires_gradient_sync(bool(step % 2))
            loss_of(model, rank, step).backward()
            if step % 2:
                optimizer.step()
                optimizer.zero_grad()
    return x


@case("same-data-on-ranks")
def fsdp_same_data(rank: int) -> Xray:
    model = shard(mlp(), "0")
    with Xray(model) as x:
        train(model, adamw(model), 0)
    return x


@case("hyperparameters-differ-between-ranks")
def fsdp_different_weight_decay(rank: int) -> Xray:
    model = shard(mlp(), "0")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1 * rank)
    with Xray(model) as x:
        train(model, optimizer, rank)
    return x


@case("running-statistics-differ-between-ranks", "note")
def fsdp_batch_norm(rank: int) -> Xray:
    model = shard(with_norms(), "0")
    with Xray(model) as x:
        train(model, adamw(model), rank)
    return x


@case("missing-zero-grad")
def fsdp_without_zero_grad(rank: int) -> Xray:
    model = shard(mlp(), "0")
    optimizer = adamw(model)
    with Xray(model) as x:
        for step in range(4):
            loss_of(model, rank, step).backward()
            optimizer.step()
    return x


@case()
def fsdp_one_rank_alone(rank: int) -> Xray | None:
    """Rank 1 alone takes an x-ray: it must not gather a parameter that rank 0 does not send."""
    model = shard(mlp(), "0", "2")
    optimizer = adamw(model)
    if rank == 0:
        train(model, optimizer, rank)
        return None
    with Xray(model) as x:
        train(model, optimizer, rank)
    return x
