"""Odds: how likely each of a few options is."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Generic, TypeVar

T = TypeVar("T")


class Categorical(Generic[T]):
    """Options in the order of how often they are taken: the r-th weighs 1 / (r + 2), as Zipf saw with words.

    So nobody has to write weights down, and whoever adds a sentence only decides where it stands.

    >>> odds = Categorical(["often", "at times", "seldom"])
    >>> [round(p, 3) for p in odds.probabilities]
    [0.426, 0.319, 0.255]
    >>> odds.pick(0.5)  # by a number between 0 and 1
    (1, 'at times')
    """

    def __init__(self, options: Sequence[T], weights: Sequence[float] | None = None) -> None:
        if weights is None:
            weights = [1 / (rank + 2) for rank in range(1, len(options) + 1)]
        total = math.fsum(weights)
        self.options = tuple(options)
        self.probabilities = tuple(weight / total for weight in weights)
        self.nats = tuple(-math.log(p) for p in self.probabilities)
        """What taking each option costs: -ln p."""
        self._thresholds = tuple(accumulate(self.probabilities[:-1]))  # the last option takes whatever is left

    @property
    def entropy(self) -> float:
        """The mean of what an option costs, in nats."""
        return math.fsum(p * nats for p, nats in zip(self.probabilities, self.nats, strict=True))

    def pick(self, number: float) -> tuple[int, T]:
        """The option that a number from [0, 1) stands for, after its place."""
        place = bisect_right(self._thresholds, number)
        return place, self.options[place]

    def without(self, place: int) -> "Categorical[T]":
        """The odds once this option is out of the question; the others keep their proportions."""
        kept = [i for i in range(len(self.options)) if i != place]
        return Categorical([self.options[i] for i in kept], [self.probabilities[i] for i in kept])
