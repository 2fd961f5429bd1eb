"""Optimizer steps with gradients that are equal on all ranks."""

from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from normscope.models.gpt import GPT
from normscope.models.presets import llama
from normscope.runtime.ranks import ALONE, Ranks
from normscope.training.config import TrainConfig
from normscope.training.optimizers.groups import OptimizerGroup
from normscope.training.parallel.models import parallel_model
from normscope.training.parallel.sharded_optimizer import ShardedOptimizerGroup, full_tensor, is_sharded
from tests.support import randn, scramble

STEPS = 3


def update(ranks: Ranks = ALONE, optimizer: str = "muon", parallel: str = "ddp") -> tuple[dict[str, Tensor], int]:
    """The weights after a few steps, and the bytes of optimizer state on this rank."""
    model, group = stepped_group(ranks, optimizer, parallel)
    weights = {name: full_tensor(weight.detach()).clone() for name, weight in model.named_parameters()}
    return weights, sum(tensor.nbytes for inner in group._optimizers for tensor in states(inner))


def stepped_group(ranks: Ranks, optimizer: str, parallel: str) -> tuple[GPT, OptimizerGroup]:
    model = GPT(llama(vocab_size=29, context=8, depth=3, width=20, heads=2))
    scramble(model)
    settings: dict[str, Any] = {"optimizer": optimizer, "parallel": parallel}
    config = TrainConfig(steps=STEPS, batch=1, weight_decay=0.1, lr=0.03, **settings)
    parallel_model(model, config, ranks)
    sharded = is_sharded(model.embedding.weight)
    group = (ShardedOptimizerGroup if sharded else OptimizerGroup)(model, config, ranks)
    for step in range(STEPS):
        for i, weight in enumerate(model.parameters()):
            weight.grad = like(randn(*weight.shape, seed=100 * step + i, dtype=torch.float32), weight)
        group.step((step + 1) / STEPS)
    return model, group


def state_loaded_in_any_order(ranks: Ranks) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """What a rank saves of a sharded model's optimizer, and what it saves again after loading it.

    Each rank loads the tensors in an order of its own.
    """
    group = stepped_group(ranks, "adamw", "fsdp")[1]
    saved = group.tensors()
    collected: list[dict[str, Tensor]] = [{} for _ in range(ranks.size)]
    dist.all_gather_object(collected, saved)
    everything = {name: tensor for part in collected for name, tensor in part.items()}
    names = sorted(everything, reverse=ranks.rank % 2 == 1)
    group.load({name: everything[name] for name in names})
    return saved, group.tensors()


def states(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [value for state in optimizer.state.values() for value in state.values()]


def like(gradient: Tensor, weight: Tensor) -> Tensor:
    """The gradient, sharded as the weight is."""
    if not is_sharded(weight):
        return gradient
    from torch.distributed.tensor import distribute_tensor

    sharded: Any = weight
    return cast(Tensor, distribute_tensor(gradient, sharded.device_mesh, sharded.placements, src_data_rank=None))


def update_all(ranks: Ranks) -> dict[tuple[str, str], tuple[dict[str, Tensor], int]]:
    cases = [(optimizer, parallel) for optimizer in ("muon", "adamw") for parallel in ("ddp", "fsdp")]
    return {case: update(ranks, *case) for case in cases}
