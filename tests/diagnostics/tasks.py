"""Simple tasks for small models: clusters of points, bars in images, counting sequences."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.diagnostics.cases import Objective

Batches = Callable[[int], Objective]
"""Batch number -> objective."""

CLASSES, VOCAB_SIZE, CONTEXT = 4, 16, 16


def points(seed: int, count: int = 64, width: int = 16) -> tuple[Tensor, Tensor]:
    """Clusters around four centers."""
    centers = torch.randn(CLASSES, width, generator=torch.Generator().manual_seed(1))
    random = torch.Generator().manual_seed(1000 + seed)
    labels = torch.randint(CLASSES, (count,), generator=random)
    return centers[labels] + 0.5 * torch.randn(count, width, generator=random), labels


def images(seed: int, count: int = 16, size: int = 8) -> tuple[Tensor, Tensor]:
    """Bars at one of four heights, with noise."""
    random = torch.Generator().manual_seed(2000 + seed)
    labels = torch.randint(CLASSES, (count,), generator=random)
    x = 0.3 * torch.randn(count, 1, size, size, generator=random)
    x[torch.arange(count), 0, labels * (size // CLASSES)] += 2.0
    return x, labels


def texts(seed: int, count: int = 16, vocab_size: int = VOCAB_SIZE, length: int = CONTEXT) -> tuple[Tensor, Tensor]:
    """Sequences that count up by one, two or three, and their next tokens."""
    random = torch.Generator().manual_seed(3000 + seed)
    start = torch.randint(vocab_size, (count, 1), generator=random)
    step = torch.randint(1, 4, (count, 1), generator=random)
    text = (start + step * torch.arange(length + 1)) % vocab_size
    return text[:, :-1], text[:, 1:]


def classify(model: nn.Module, data: Callable[[int], tuple[Tensor, Tensor]] = points) -> Batches:
    def batch(number: int) -> Objective:
        inputs, labels = data(number)
        return lambda: F.cross_entropy(model(inputs), labels)

    return batch


def predict_next(model: nn.Module, data: Callable[[int], tuple[Tensor, Tensor]] = texts) -> Batches:
    """Predict the next token at every position; the model returns logits or a Hugging Face output with logits."""

    def batch(number: int) -> Objective:
        inputs, targets = data(number)

        def objective() -> Tensor:
            out = model(inputs)
            logits = getattr(out, "logits", out)
            return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

        return objective

    return batch


def classify_stride(model: nn.Module) -> Batches:
    """Classify each sequence by the stride it counts with."""

    def batch(number: int) -> Objective:
        inputs, targets = texts(number)
        labels = (targets[:, 0] - inputs[:, 0]) % VOCAB_SIZE

        def objective() -> Tensor:
            out = model(inputs)
            return F.cross_entropy(getattr(out, "logits", out), labels)

        return objective

    return batch


def reconstruct(model: nn.Module, data: Callable[[int], tuple[Tensor, Tensor]]) -> Batches:
    """Reconstruct the input."""

    def batch(number: int) -> Objective:
        inputs, _ = data(number)
        return lambda: F.mse_loss(model(inputs), inputs)

    return batch
