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

from normscope.errors import CorpusError
from normscope.models.gpt import GPT
from normscope.ops.cross_entropy import IGNORE_INDEX


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
) -> ValidationResult:
    """Average the loss over all batches, weighted by targets. The model's train/eval mode is restored."""
    device = model.embedding.weight.device
    was_training = model.training
    model.eval()
    nats, count = 0.0, 0
    try:
        with torch.inference_mode(), autocast():
            for inputs, targets, *more in batches:
                loss = model.loss(*(torch.from_numpy(array).to(device) for array in (inputs, targets, *more)))
                trained = int((targets != IGNORE_INDEX).sum())
                nats += loss.item() * trained
                count += trained
    finally:
        model.train(was_training)
    if not count:
        raise CorpusError("the validation split is empty\nfix: hold out a larger fraction of the text, or add text")
    return ValidationResult(loss=nats / count, bits_per_byte=nats / count / bytes_per_token / math.log(2))
