"""Optimizer steps with gradients that are equal on all ranks."""

from typing import Any, cast

import torch
from torch import Tensor

from normscope.models.gpt import GPT
from normscope.models.presets import llama
from normscope.runtime.ranks import ALONE, Ranks
from normscope.training.config import TrainConfig
from normscope.training.optimizers.groups import OptimizerGroup
from normscope.training.optimizers.sharded import ShardedOptimizerGroup, is_sharded, whole
from normscope.training.parallel import parallel_model
from tests.support import randn, scramble

STEPS = 3


def update(ranks: Ranks = ALONE, optimizer: str = "muon", parallel: str = "ddp") -> tuple[dict[str, Tensor], int]:
    """The weights after a few steps, and the bytes of optimizer state on this rank."""
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
    weights = {name: whole(weight.detach()).clone() for name, weight in model.named_parameters()}
    return weights, sum(tensor.nbytes for inner in group._optimizers for tensor in states(inner))


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
