"""Evaluate a model on the validation split."""

import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch

from normscope.errors import CorpusError
from normscope.models.gpt import GPT


@dataclass(frozen=True)
class ValidationResult:
    """The result of a full pass over the validation split.

    Args:
        loss: Cross-entropy in nats per token.
        bits_per_byte: The same, independent of the tokenizer.
    """

    loss: float
    bits_per_byte: float


def evaluate(
    model: GPT,
    windows: Iterable[tuple[np.ndarray, np.ndarray]],
    bytes_per_token: float,
    autocast: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> ValidationResult:
    """Average the loss over all windows, weighted by tokens. The model's train/eval mode is restored."""
    device = model.embedding.weight.device
    was_training = model.training
    model.eval()
    nats, count = 0.0, 0
    try:
        with torch.inference_mode(), autocast():
            for inputs, targets in windows:
                loss = model.loss(torch.from_numpy(inputs).to(device), torch.from_numpy(targets).to(device))
                nats += loss.item() * targets.size
                count += targets.size
    finally:
        model.train(was_training)
    if not count:
        raise CorpusError("the validation split is empty\nfix: hold out a larger fraction of the text, or add text")
    return ValidationResult(nats / count, nats / count / bytes_per_token / math.log(2))
