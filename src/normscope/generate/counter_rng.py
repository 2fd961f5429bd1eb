"""Chance without a state: one number for each seed, sample and place, whoever asks and in whatever order."""

import numpy as np


def uniform(seed: int, sample: int, place: int) -> float:
    """A number from 0 up to and without 1, from 53 random bits.

    A counter-based generator (Philox) turns seed, sample and place into the bits. Nothing is drawn before or after, so
    a text's chances depend on no other text that is made beside it.

    >>> uniform(0, sample=0, place=5) == uniform(0, sample=0, place=5)
    True
    >>> uniform(0, sample=0, place=5) == uniform(0, sample=1, place=5)
    False

    Paper:
        Salmon et al. 2011, "Parallel Random Numbers: As Easy as 1, 2, 3".
    """
    key = np.array([seed, sample], dtype=np.uint64)
    counter = np.array([place, 0, 0, 0], dtype=np.uint64)
    bits = int(np.random.Philox(counter=counter, key=key).random_raw())
    return (bits >> 11) * 2.0**-53
