"""scikit-learn's bundled digits: 1,797 pictures of 8 x 8 pixels, in ten classes."""

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from normscope.errors import ConfigError

HELD_OUT = 397
CLASSES, SIZE = 10, 8


@dataclass(frozen=True)
class Digits:
    """Pictures (n, 1, 8, 8), of mean 0 and variance 1 over all, and their classes; some are held out."""

    images: Tensor
    labels: Tensor
    test_images: Tensor
    test_labels: Tensor

    def batch(self, number: int, size: int, seed: int) -> tuple[Tensor, Tensor]:
        """Batch `number`: each epoch takes every picture once, in an order of the seed's and its own."""
        whole = len(self.images) // size
        epoch, place = divmod(number, whole)
        order = torch.from_numpy(np.random.default_rng((seed, epoch)).permutation(len(self.images)))
        chosen = order[place * size : (place + 1) * size]
        return self.images[chosen], self.labels[chosen]


def load_digits(seed: int) -> Digits:
    """The digits; which of them are held out, the seed decides."""
    images, labels = _all()
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(images)))
    test, train = order[:HELD_OUT], order[HELD_OUT:]
    return Digits(images[train], labels[train], images[test], labels[test])


@cache
def _all() -> tuple[Tensor, Tensor]:
    try:
        from sklearn.datasets import load_digits as bundled
    except ImportError:
        raise ConfigError("the digits come with scikit-learn\nfix: pip install 'normscope[lab]'") from None
    found = bundled()
    images = torch.from_numpy(found.images).float()[:, None]
    return (images - images.mean()) / images.std(), torch.from_numpy(found.target)
