"""A shuffle that is computed and not stored: where each of billions of things goes is a formula of the seed.

A Feistel network turns the two halves of a number's bits into each other, round by round; each round can be undone, so
no two numbers end in the same place. It permutes a power of four, which may be more than there are things: whatever
lands outside goes through once more, until it is inside (cycle walking).
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.uint64]

_ROUNDS = 6


def hash_key(*parts: object) -> int:
    """A number of 64 bits that depends on these parts alone: on no process, machine or version of Python.

    >>> hash_key("epoch", 3) == hash_key("epoch", 3), hash_key("epoch", 3) == hash_key("epoch", 4)
    (True, False)
    """
    words = "\0".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(words.encode(), digest_size=8).digest(), "little")


def splitmix64(values: Numbers) -> Numbers:
    """Each number scrambled: inputs that differ in a bit give outputs that have nothing in common.

    Steele et al. 2014, "Fast Splittable Pseudorandom Number Generators" (the finaliser of SplitMix64).
    """
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def permute(places: NDArray[np.int64], size: int, keys: Numbers) -> NDArray[np.int64]:
    """Where each of some places among `size` goes, in the permutation of its key (one key for each place).

    >>> keys = np.full(8, hash_key("a seed"), dtype=np.uint64)
    >>> order = permute(np.arange(8), 8, keys)
    >>> sorted(order.tolist())
    [0, 1, 2, 3, 4, 5, 6, 7]
    """
    half_bits = np.uint64(max(1, ((size - 1).bit_length() + 1) // 2))
    values = places.astype(np.uint64)
    outside = np.arange(len(values))
    while len(outside):
        values[outside] = _feistel(values[outside], half_bits, keys[outside])
        outside = outside[values[outside] >= size]
    return values.astype(np.int64)


def _feistel(values: Numbers, half_bits: np.uint64, keys: Numbers) -> Numbers:
    mask = (np.uint64(1) << half_bits) - np.uint64(1)
    left, right = values >> half_bits, values & mask
    for step in range(_ROUNDS):
        left, right = right, left ^ (splitmix64(right ^ splitmix64(keys + np.uint64(step))) & mask)
    return (left << half_bits) | right
