"""What ranks do under DistributedDataParallel, or without it: healthy training, and one fault each."""

import contextlib
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, AdamW, Optimizer
from torch.utils.checkpoint import checkpoint

from normscope.diagnostics.probe import Xray
from normscope.diagnostics.stats.ranks import RanksRecord
from tests.diagnostics.ranks.launch import RankCase
from tests.support import gradients as gradients_of
from tests.support import randn

CASES: list[RankCase] = []
Run = Callable[[int], Xray | None]


def case_of(cases: list[RankCase]) -> Callable[..., Callable[[Run], Run]]:
    """Return a decorator that adds a function to these cases; without a finding, as a healthy one."""

    def case(finding: str = "", severity: str = "warning") -> Callable[[Run], Run]:
        def add(run: Run) -> Run:
            cases.append(RankCase(run, finding, severity))
            return run

        return add

    return case


case = case_of(CASES)


def ranks_of(x: Xray) -> RanksRecord:
    assert x.record.ranks is not None
    return x.record.ranks


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
                model.get_parameter("module.2.weight")[3, 5] += 0.1
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
    inner.register_buffer("scale", torch.ones(3))
    model = DistributedDataParallel(inner, forward_sync_buffers=False)
    inner.get_buffer("scale").fill_(1.0 + rank)
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


@case("shapes-differ-between-ranks")
def different_widths(rank: int) -> Xray:
    model = nn.Sequential(nn.Linear(6, 8 + 8 * rank), nn.ReLU(), nn.Linear(8 + 8 * rank, 3))
    with Xray(model) as x:
        loss_of(model, rank, 0).backward()
    return x


@case("shapes-differ-between-ranks", "note")
def stages_of_a_pipeline(rank: int) -> Xray:
    model = nn.ModuleDict({f"stage{rank}": mlp()})
    with Xray(model) as x:
        loss_of(model[f"stage{rank}"], rank, 0).backward()
    return x


@case("gradients-not-reduced", "error")
def without_a_wrapper(rank: int) -> Xray:
    """The same seed on all ranks, and nothing that averages the gradients."""
    model = mlp()
    with Xray(model) as x:
        train(model, adamw(model), rank)
    return x


@case()
def reduced_by_hand(rank: int) -> Xray:
    model = mlp()
    optimizer = adamw(model)
    with Xray(model) as x:
        for step in range(2):
            optimizer.zero_grad()
            loss_of(model, rank, step).backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            optimizer.step()
    return x


@case("steps-differ-between-ranks", "note")
def ddp_with_join(rank: int) -> Xray:
    """Rank 0 has fewer batches, which is no fault: Join makes the weights equal again."""
    model = DistributedDataParallel(mlp())
    optimizer = SGD(model.parameters(), lr=0.1)
    with Xray(model) as x, Join([model]):
        train(model, optimizer, rank, steps=2 if rank == 0 else 3)
    return x


@case()
def ddp_validates_the_same_data(rank: int) -> Xray:
    model = DistributedDataParallel(mlp()).eval()
    with Xray(model) as x, torch.no_grad():
        loss_of(model, 0, 0)
    return x


class SyncedNorm(nn.Module):
    """A norm that communicates, of which the x-ray knows nothing."""

    def forward(self, x: Tensor) -> Tensor:
        square = x.detach().square().mean(0)
        dist.all_reduce(square)
        return x / (square / dist.get_world_size() + 1e-5).sqrt()


@case()
def norm_that_communicates(rank: int) -> Xray | None:
    """The x-ray of rank 0 tries the norm on inputs of its own, which must not reach the other ranks."""
    model = DistributedDataParallel(nn.Sequential(nn.Linear(6, 24), SyncedNorm(), nn.Linear(24, 3)))
    optimizer = adamw(model)
    if rank:
        train(model, optimizer, rank)
        return None
    with Xray(model) as x:
        train(model, optimizer, rank)
    return x


@case()
def ddp_is_bitwise_the_same(rank: int) -> None:
    found = []
    for observed in (False, True):
        torch.manual_seed(0)
        model = DistributedDataParallel(with_norms())
        optimizer = adamw(model)
        with Xray(model) if observed else contextlib.nullcontext():
            train(model, optimizer, rank)
        train(model, optimizer, rank)  # it goes on afterwards
        found.append(model.state_dict())
    assert all(torch.equal(value, found[1][name]) for name, value in found[0].items())


@case()
def ddp_gradients_are_those_of_the_whole_batch(rank: int) -> Xray:
    """Accumulated over two batches, of which only the second is reduced; then once more without zero_grad."""
    model = DistributedDataParallel(mlp())
    with Xray(model) as x:
        with model.no_sync():
            loss_of(model, rank, 0).backward()
        loss_of(model, rank, 1).backward()
        loss_of(model, rank, 2).backward()
    alone = mlp()
    alone.load_state_dict(model.module.state_dict())
    gradients: list[dict[str, Tensor]] = []
    for steps in ((0, 1), (2,)):
        alone.zero_grad()
        for other in range(dist.get_world_size()):
            for step in steps:
                (loss_of(alone, other, step) / dist.get_world_size()).backward()
        gradients.append(gradients_of(alone))
    for full in gradients[0]:
        module, _, name = full.rpartition(".")
        (found,) = (p for p in x.record[module].parameters if p.name == name)
        both = torch.cat([own[full].flatten() for own in gradients]).double()
        assert found.gradient is not None
        torch.testing.assert_close(found.gradient.rms, float(both.square().mean().sqrt()), rtol=1e-5, atol=0)
    assert x.record.backward_passes == 3
    return x


@case()
def ddp_with_shared_optimizer_states(rank: int) -> Xray:
    """Each rank steps a part of the parameters, and sends the others the result."""
    from torch.distributed.optim import ZeroRedundancyOptimizer  # it loads all of torch.distributed

    model = DistributedDataParallel(mlp())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), SGD, lr=0.1)
    with Xray(model) as x:
        train(model, optimizer, rank)
    return x


class Checkpointed(nn.Module):
    """Runs a backward pass of its own inside that of the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.rest = nn.Linear(6, 24), nn.Sequential(nn.ReLU(), nn.Linear(24, 3))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = checkpoint(self.rest, self.first(x), use_reentrant=True)
        return result


@case()
def ddp_with_reentrant_checkpoint(rank: int) -> Xray:
    inner = Checkpointed()
    model = DistributedDataParallel(inner, static_graph=True)
    with Xray(model) as x:
        loss_of(model, rank, 0).backward()
    for name, gradient in gradients_of(inner).items():
        module, _, own = name.rpartition(".")
        (found,) = (p for p in x.record[module].parameters if p.name == own)
        assert found.gradient is not None
        torch.testing.assert_close(found.gradient.mean, float(gradient.double().mean()), rtol=1e-5, atol=1e-12)
    return x


@case()
def keys_are_removed(rank: int) -> None:
    model = DistributedDataParallel(mlp())
    train(model, adamw(model), rank)
    dist.barrier()
    group = dist.group.WORLD
    assert group is not None
    store = group.get_group_store()
    before = store.num_keys()
    for who in (range(dist.get_world_size()), (0,)):  # all, and one
        if rank in who:
            with Xray(model) as x:
                loss_of(model.module, rank, 0)
            assert [member.rank for member in ranks_of(x).members] == list(who)
        dist.barrier()
        assert store.num_keys() == before
        dist.barrier()  # before the next x-ray adds its keys


@case()
def interrupted_on_one_rank(rank: int) -> Xray:
    model = mlp()
    try:
        with Xray(model) as x:
            loss_of(model, rank, 0)
            if rank == 1:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        assert x.record.ranks is None
    else:
        assert ranks_of(x).missing == (1,)
    return x


@case()
def other_labels_are_not_compared(rank: int) -> Xray:
    model = mlp()
    with Xray(model, label=f"step {rank}") as x:
        loss_of(model, rank, 0)
    assert [member.rank for member in ranks_of(x).members] == [rank]
    return x


@case()
def without_a_comparison(rank: int) -> Xray:
    model = mlp()
    with Xray(model, compare_ranks=False) as x:
        loss_of(model, rank, 0)
    assert x.record.ranks is None
    return x
