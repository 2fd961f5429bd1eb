"""A categorical distribution over a few options, with Zipf-like probabilities by default."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Generic, TypeVar

T = TypeVar("T")


class Categorical(Generic[T]):
    """A categorical distribution. By default the option of rank r has weight 1 / (r + 2), as in Zipf's law.

    So frequencies need not be written down: the order of the options determines them.

    >>> distribution = Categorical(["often", "sometimes", "rarely"])
    >>> [round(p, 3) for p in distribution.probabilities]
    [0.426, 0.319, 0.255]
    >>> distribution.sample(0.5)
    (1, 'sometimes')
    """

    def __init__(self, options: Sequence[T], weights: Sequence[float] | None = None) -> None:
        if weights is None:
            weights = [1 / (rank + 2) for rank in range(1, len(options) + 1)]
        total = math.fsum(weights)
        self.options = tuple(options)
        self.probabilities = tuple(weight / total for weight in weights)
        self.nats = tuple(-math.log(p) for p in self.probabilities)
        """-ln p of each option."""
        self._cumulative = tuple(accumulate(self.probabilities[:-1]))  # the last option takes the remainder

    @property
    def entropy(self) -> float:
        """Entropy in nats."""
        return math.fsum(p * nats for p, nats in zip(self.probabilities, self.nats, strict=True))

    def sample(self, uniform: float) -> tuple[int, T]:
        """Return the index and value of the option for a uniform random number from [0, 1)."""
        index = bisect_right(self._cumulative, uniform)
        return index, self.options[index]

    def without(self, index: int) -> "Categorical[T]":
        """Return the distribution conditioned on not drawing this option."""
        kept = [i for i in range(len(self.options)) if i != index]
        return Categorical([self.options[i] for i in kept], [self.probabilities[i] for i in kept])
