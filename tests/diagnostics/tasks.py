"""Simple tasks that small models learn: points in clusters, bars in images, texts that count."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.diagnostics.cases import Objective

Batches = Callable[[int], Objective]
"""The objective of the batch of this number."""

CLASSES, TOKENS, LENGTH = 4, 16, 16


def points(seed: int, count: int = 64, width: int = 16) -> tuple[Tensor, Tensor]:
    """Clusters round four centres."""
    centres = torch.randn(CLASSES, width, generator=torch.Generator().manual_seed(1))
    random = torch.Generator().manual_seed(1000 + seed)
    labels = torch.randint(CLASSES, (count,), generator=random)
    return centres[labels] + 0.5 * torch.randn(count, width, generator=random), labels


def images(seed: int, count: int = 16, size: int = 8) -> tuple[Tensor, Tensor]:
    """Bars at one of four heights, with noise."""
    random = torch.Generator().manual_seed(2000 + seed)
    labels = torch.randint(CLASSES, (count,), generator=random)
    pictures = 0.3 * torch.randn(count, 1, size, size, generator=random)
    pictures[torch.arange(count), 0, labels * (size // CLASSES)] += 2.0
    return pictures, labels


def texts(seed: int, count: int = 16, vocabulary: int = TOKENS, length: int = LENGTH) -> tuple[Tensor, Tensor]:
    """Texts that count up in steps of one, two or three; and each text's next tokens."""
    random = torch.Generator().manual_seed(3000 + seed)
    start = torch.randint(vocabulary, (count, 1), generator=random)
    step = torch.randint(1, 4, (count, 1), generator=random)
    text = (start + step * torch.arange(length + 1)) % vocabulary
    return text[:, :-1], text[:, 1:]


def classify(model: nn.Module, data: Callable[[int], tuple[Tensor, Tensor]] = points) -> Batches:
    def batch(number: int) -> Objective:
        inputs, labels = data(number)
        return lambda: F.cross_entropy(model(inputs), labels)

    return batch


def predict(model: nn.Module, data: Callable[[int], tuple[Tensor, Tensor]] = texts) -> Batches:
    """The next token at every place, of a model that gives logits, or transformers' dataclass of them."""

    def batch(number: int) -> Objective:
        inputs, targets = data(number)

        def objective() -> Tensor:
            out = model(inputs)
            logits = getattr(out, "logits", out)
            return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

        return objective

    return batch


def count_up(model: nn.Module) -> Batches:
    """Which step a text counts in: one class for each text."""

    def batch(number: int) -> Objective:
        inputs, targets = texts(number)
        labels = (targets[:, 0] - inputs[:, 0]) % TOKENS

        def objective() -> Tensor:
            out = model(inputs)
            return F.cross_entropy(getattr(out, "logits", out), labels)

        return objective

    return batch


def restore(model: nn.Module, data: Callable[[int], tuple[Tensor, Tensor]]) -> Batches:
    """Give back the input."""

    def batch(number: int) -> Objective:
        inputs, _ = data(number)
        return lambda: F.mse_loss(model(inputs), inputs)

    return batch
