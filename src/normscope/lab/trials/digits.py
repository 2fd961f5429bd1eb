"""scikit-learn's bundled digits: 1,797 pictures of 8 x 8 pixels, in ten classes."""

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from normscope.errors import ConfigError

HELD_OUT = 397
CLASSES, SIZE = 10, 8
SPLIT = 0
"""What the pictures were shuffled by, once and for all, before some were held out."""
FIXED_SPLIT = (
    "Whatever the seed, the same 1,400 pictures are learnt from and the same 397 held out: seeds differ in chance "
    "while training, the first weights and the order for instance, and intervals speak of that, on these pictures."
)
"""For the designs of all claims on the digits."""


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


def load_digits() -> Digits:
    """The digits, of which the same are always held out.

    With another split for every seed, the held-out pictures of two seeds would have many in common. Their losses would
    not be independent, and an interval that takes them for independent would be too narrow.
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
        raise ConfigError("the digits come with scikit-learn\nfix: pip install 'normscope[lab]'") from None
    found = bundled()
    images = torch.from_numpy(found.images).float()[:, None]
    return (images - images.mean()) / images.std(), torch.from_numpy(found.target)
