"""A counter-based random number generator: each number is a pure function of (seed, sample, position)."""

import numpy as np


def uniform(seed: int, sample: int, position: int) -> float:
    """Return a uniform random number in [0, 1) with 53 random bits.

    Philox maps (seed, sample, position) to the bits. There is no state, so the numbers of one sequence never depend on
    which other sequences are generated with it.

    >>> uniform(0, sample=0, position=5) == uniform(0, sample=0, position=5)
    True
    >>> uniform(0, sample=0, position=5) == uniform(0, sample=1, position=5)
    False

    Paper:
        Salmon et al. 2011, "Parallel Random Numbers: As Easy as 1, 2, 3".
    """
    key = np.array([seed, sample], dtype=np.uint64)
    counter = np.array([position, 0, 0, 0], dtype=np.uint64)
    bits = int(np.random.Philox(counter=counter, key=key).random_raw())
    return (bits >> 11) * 2.0**-53
