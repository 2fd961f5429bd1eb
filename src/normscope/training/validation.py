"""Evaluate a model on the validation split.

To add a metric, compute it in `evaluate`, and add a field to `ValidationResult` and the same field to `ValidationEvent`
(`normscope.runs.events`). metrics.jsonl, TensorBoard and Weights & Biases then have it. The displays
(`normscope.training.observers`) and the report (`normscope.runs.report`) show the metrics that they name.
"""

import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from normscope.errors import CorpusError
from normscope.models.gpt import GPT
from normscope.ops.cross_entropy import IGNORE_INDEX
from normscope.runtime.ranks import ALONE, Ranks


@dataclass(frozen=True)
class ValidationResult:
    """The result of a full pass over the validation split.

    Args:
        loss: Cross-entropy in nats per token.
        bits_per_byte: Loss in bits per byte, comparable across tokenizers.
    """

    loss: float
    bits_per_byte: float


def evaluate(
    model: GPT,
    batches: Iterable[tuple[np.ndarray, ...]],
    bytes_per_token: float,
    autocast: Callable[[], AbstractContextManager[None]] = nullcontext,
    ranks: Ranks = ALONE,
    loss_of: Callable[..., Tensor] | None = None,
) -> ValidationResult:
    """Average the loss over all batches, weighted by targets. The model's train/eval mode is restored.

    Each rank computes some rows of every batch, with `loss_of` if the model itself has only a part of its parameters.
    """
    compute = model.loss if loss_of is None else loss_of
    device = model.embedding.weight.device
    was_training = model.training
    model.eval()
    nats, count = 0.0, 0.0
    try:
        # FSDP2 cannot train on with parameters that it gathered in inference mode.
        with torch.inference_mode() if loss_of is None else torch.no_grad(), autocast():
            for batch in batches:
                part = [array[ranks.part(len(array))] for array in batch]
                trained = int((part[1] != IGNORE_INDEX).sum())
                count += trained
                if trained or loss_of is not None:
                    loss = compute(*(torch.from_numpy(array).to(device) for array in part))
                    nats += loss.item() * trained
    finally:
        model.train(was_training)
    nats, count = ranks.sum(nats, count)
    if not count:
        raise CorpusError("the validation split is empty\nfix: hold out a larger fraction of the text, or add text")
    return ValidationResult(loss=nats / count, bits_per_byte=nats / count / bytes_per_token / math.log(2))
