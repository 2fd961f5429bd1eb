"""What ranks do with a model that FSDP2 shards: healthy training, and one fault each."""

import contextlib
import copy
from dataclasses import astuple
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from normscope.diagnostics.collect.collectives import CollectiveError, NoCollectives
from normscope.diagnostics.probe import Xray
from normscope.tracing.sharded import local_part
from tests.diagnostics.ranks.ddp_cases import adamw, case_of, loss_of, mlp, ranks_of, train, with_norms
from tests.diagnostics.ranks.launch import RankCase

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule

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


def mlp8() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8), Contiguous())


class Contiguous(nn.Module):
    """Make a copy: FSDP2 warns of an output that is a view, as that of a linear layer for three axes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.clone()


def shard(model: nn.Module, *parts: str) -> "FSDPModule":
    """Shard these parts by themselves, and then the rest."""
    from torch.distributed.fsdp import fully_shard  # half a second, in the processes that need it

    for name in parts:
        fully_shard(model.get_submodule(name))
    return fully_shard(model)


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


@case("steps-differ-between-ranks")
def fsdp_steps_on_one_rank(rank: int) -> Xray:
    model = shard(mlp(), "0")
    optimizer = adamw(model)
    with Xray(model) as x:
        for step in range(2):
            optimizer.zero_grad()
            loss_of(model, rank, step).backward()
            if rank == 0:
                optimizer.step()
    return x


@case("mode-differs-between-ranks")
def fsdp_eval_of_a_part(rank: int) -> Xray:
    model = shard(nn.Sequential(nn.Linear(6, 24), nn.Dropout(0.1), nn.ReLU(), nn.Linear(24, 3)))
    model.get_submodule("1").train(rank == 0)
    with Xray(model) as x:
        train(model, adamw(model), rank)
    return x


@case("buffers-differ-between-ranks")
def fsdp_different_buffers(rank: int) -> Xray:
    model = mlp()
    model.register_buffer("scale", torch.full((3,), 1.0 + rank))
    model.register_buffer("cache", torch.full((3,), 1.0 + rank), persistent=False)
    shard(model, "0")
    with Xray(model) as x:
        train(model, adamw(model), rank)
    assert [found.name for found in ranks_of(x).differences] == ["scale"]
    return x


@case()
def fsdp_is_bitwise_the_same(rank: int) -> None:
    found = []
    for observed in (False, True):
        torch.manual_seed(0)
        model = shard(with_norms(), "0")
        optimizer = adamw(model)
        with Xray(model) if observed else contextlib.nullcontext():
            train(model, optimizer, rank)
        train(model, optimizer, rank)  # it goes on afterwards
        found.append({name: local_part(value) for name, value in model.state_dict().items()})
    assert all(torch.equal(value, found[1][name]) for name, value in found[0].items())


@case()
def fsdp_measures_whole_parameters(rank: int) -> Xray:
    """Weights and gradients are those of one process that has this rank's batch."""
    plain = mlp()
    records = []
    for model in (plain, shard(copy.deepcopy(plain), "0")):
        with Xray(model, compare_ranks=False) as x:
            loss_of(model, rank, 0).backward()
        records.append(x.record)
    ours, theirs = records[1], records[0]
    assert [m.name for m in ours.ran] == [m.name for m in theirs.ran]
    assert [m.kind for m in ours.modules] == [m.kind for m in theirs.modules]
    assert ours.model == theirs.model == "Sequential"
    for module in theirs.modules:
        found = ours[module.name]
        pairs = [(found.output, module.output), (found.gradient, module.gradient)]
        for mine, own in zip(found.parameters, module.parameters, strict=True):
            assert (mine.name, mine.shape, mine.content_hash) == (own.name, own.shape, own.content_hash)
            pairs += [(mine.values, own.values), (mine.gradient, own.gradient)]
        for one, other in pairs:
            assert one is not None
            assert other is not None
            torch.testing.assert_close(astuple(one), astuple(other), rtol=1e-9, atol=1e-12)
    return x


@case()
def updates_are_those_of_the_shard(rank: int) -> Xray:
    model = shard(mlp(), "0")
    before = {name: local_part(p).clone() for name, p in model.named_parameters()}
    with Xray(model) as x:
        train(model, adamw(model), rank, steps=1)
    for name, parameter in model.named_parameters():
        module, _, own = name.rpartition(".")
        (found,) = (p for p in x.record[module].parameters if p.name == own)
        change = float((local_part(parameter) - before[name]).double().square().mean().sqrt())
        assert found.in_optimizer
        torch.testing.assert_close(found.update_rms, change, rtol=1e-5, atol=0)
    return x


@case("weights-differ-between-ranks", "error")
def hybrid_shards_are_compared(rank: int) -> Xray:
    """Copies of an unsharded model, as a mesh sees it: the weight that one of them changes is found."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(), 1), mesh_dim_names=("replicate", "shard"))
    model = mlp()
    fully_shard(model, mesh=mesh)
    with Xray(model) as x:
        train(model, adamw(model), rank)
        if rank == 1:
            local_part(model.get_parameter("2.weight"))[3, 5] += 0.1
    assert [found.name for found in ranks_of(x).differences] == ["2.weight"]
    return x


@case()
def arithmetic_of_shards_is_refused(rank: int) -> None:
    """A sum over a sharded parameter would wait for the other rank."""
    model = shard(mlp())
    if rank == 0:
        with pytest.raises(CollectiveError), NoCollectives(), torch.no_grad():
            model.get_parameter("0.weight").sum().full_tensor()
    train(model, adamw(model), rank)
