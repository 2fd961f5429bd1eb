"""A task that an image model learns in a few steps: whether a bar is vertical or horizontal."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.support import randn


def bars(count: int = 48, size: int = 8) -> tuple[Tensor, Tensor]:
    """Noisy images with one bright row or column, and the label."""
    images = 0.2 * randn(count, 1, size, size, dtype=torch.float32)
    labels = torch.arange(count) % 2
    for i in range(count):
        index = (i // 2) % size
        if labels[i]:
            images[i, 0, :, index] += 1.0
        else:
            images[i, 0, index, :] += 1.0
    return images, labels


def learns(model: nn.Module, images: Tensor, labels: Tensor, *, lr: float, steps: int = 40) -> bool:
    """Whether a few steps more than halve the loss."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    losses = []
    for _ in range(steps):
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses[-1] < 0.5 * losses[0]
