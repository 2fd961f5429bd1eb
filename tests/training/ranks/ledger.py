"""A record of the rows that each rank computes."""

import numpy as np
import torch

from normscope.data.batches import Batches
from normscope.models.gpt import GPT
from normscope.models.presets import llama
from normscope.runtime.ranks import Ranks
from normscope.training.config import TrainConfig
from normscope.training.trainer import Trainer

CONTEXT, WINDOWS = 8, 23
"""Windows in an epoch, a number that no number of ranks divides."""
TOKENS = np.arange(CONTEXT * (WINDOWS + 1))
"""A text without repetition: the first token of a window tells which it is."""


def ledger_batches(batch: int) -> Batches:
    return Batches(TOKENS, CONTEXT, batch, seed=4)


def rows_seen(ranks: Ranks, parallel: str, batch: int, micro_batch: int | None, steps: int) -> list[np.ndarray]:
    """The inputs that this rank's model is given at each step."""
    torch.manual_seed(0)
    model = GPT(llama(vocab_size=len(TOKENS), context=CONTEXT, depth=1, width=8, heads=2))
    config = TrainConfig(steps=steps, batch=batch, micro_batch=micro_batch, parallel=parallel)  # type: ignore[arg-type]
    trainer = Trainer(model, config, ledger_batches(batch), ranks=ranks)
    trainer.warm_up_reducer()
    seen: list[torch.Tensor] = []
    model.embedding.register_forward_pre_hook(lambda _, given: seen.append(given[0].clone()))
    of_steps = []
    for _ in range(steps):
        seen.clear()
        trainer.step()
        of_steps.append(torch.cat(seen).numpy())
    return of_steps
