"""scikit-learn's bundled digits: 1,797 images of 8 x 8 pixels, in ten classes."""

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from normscope.errors import ConfigError

HELD_OUT = 397
CLASSES, SIZE = 10, 8
SPLIT = 0
"""Seed of the fixed train/test split."""


@dataclass(frozen=True)
class Digits:
    """Standardized images (n, 1, 8, 8) and their labels, for training and for testing."""

    images: Tensor
    labels: Tensor
    test_images: Tensor
    test_labels: Tensor

    def batch(self, number: int, size: int, seed: int) -> tuple[Tensor, Tensor]:
        """Return batch `number`; each epoch has its own order, determined by the seed."""
        batches = len(self.images) // size
        epoch, index = divmod(number, batches)
        order = torch.from_numpy(np.random.default_rng((seed, epoch)).permutation(len(self.images)))
        chosen = order[index * size : (index + 1) * size]
        return self.images[chosen], self.labels[chosen]


def load_digits() -> Digits:
    """Load the digits with a fixed split.

    With another split per seed, the test images of two seeds would overlap. Their losses would be correlated, and an
    interval that assumes independence would be too narrow.
    """
    images, labels = _all()
    order = torch.from_numpy(np.random.default_rng(SPLIT).permutation(len(images)))
    test, train = order[:HELD_OUT], order[HELD_OUT:]
    return Digits(images[train], labels[train], images[test], labels[test])


@cache
def _all() -> tuple[Tensor, Tensor]:
    try:
        from sklearn.datasets import load_digits as bundled
    except ImportError:
        raise ConfigError("the digits dataset needs scikit-learn\nfix: pip install 'normscope[lab]'") from None
    found = bundled()
    images = torch.from_numpy(found.images).float()[:, None]
    return (images - images.mean()) / images.std(), torch.from_numpy(found.target)
