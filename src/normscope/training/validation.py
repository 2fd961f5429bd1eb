"""How good a model is: its loss over all of the validation text, always the same windows."""

import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch

from normscope.errors import CorpusError
from normscope.models.gpt import GPT


@dataclass(frozen=True)
class Validation:
    """A full pass over the validation text.

    Args:
        loss: nats a token.
        bits_per_byte: the same in a unit that does not depend on the tokenizer.
    """

    loss: float
    bits_per_byte: float


def evaluate(
    model: GPT,
    windows: Iterable[tuple[np.ndarray, np.ndarray]],
    bytes_per_token: float,
    autocast: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Validation:
    """The mean loss over all windows, each token once; the model's mode is left as it was."""
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
        raise CorpusError("there is no validation text\nfix: hold more of the text out, or add some")
    return Validation(nats / count, nats / count / bytes_per_token / math.log(2))
