"""A task that a model of images can learn in a few steps: whether the bar stands or lies."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.support import randn


def bars(count: int = 48, size: int = 8) -> tuple[Tensor, Tensor]:
    """Noisy images of one bright row or one bright column, and which of the two it is."""
    images = 0.2 * randn(count, 1, size, size, dtype=torch.float32)
    labels = torch.arange(count) % 2
    for i in range(count):
        place = (i // 2) % size
        if labels[i]:
            images[i, 0, :, place] += 1.0
        else:
            images[i, 0, place, :] += 1.0
    return images, labels


def learns(model: nn.Module, images: Tensor, labels: Tensor, *, rate: float, steps: int = 40) -> bool:
    """Whether the loss falls to less than half in a few steps."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate)
    losses = []
    for _ in range(steps):
        loss = F.cross_entropy(model(images), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses[-1] < 0.5 * losses[0]
