"""A stateless shuffle: a pseudorandom permutation of any size that is computed, not stored.

A Feistel network permutes the numbers below a power of four: each round is invertible, so no two inputs collide. For
other sizes, a result out of range is permuted again until it is in range (cycle walking).
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

UInt64Array = NDArray[np.uint64]

_ROUNDS = 6


def hash_key(*parts: object) -> int:
    """Hash the parts to 64 bits; the same on every machine and Python version.

    >>> hash_key("epoch", 3) == hash_key("epoch", 3), hash_key("epoch", 3) == hash_key("epoch", 4)
    (True, False)
    """
    text = "\0".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def splitmix64(values: UInt64Array) -> UInt64Array:
    """Apply the output function of SplitMix64 to each number.

    Paper:
        Steele et al. 2014, "Fast Splittable Pseudorandom Number Generators".
    """
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def permute(indices: NDArray[np.int64], size: int, keys: UInt64Array) -> NDArray[np.int64]:
    """Map each index below `size` by the permutation that its key selects (one key per index).

    >>> keys = np.full(8, hash_key("a seed"), dtype=np.uint64)
    >>> order = permute(np.arange(8), 8, keys)
    >>> sorted(order.tolist())
    [0, 1, 2, 3, 4, 5, 6, 7]
    """
    half_bits = np.uint64(max(1, ((size - 1).bit_length() + 1) // 2))
    values = indices.astype(np.uint64)
    outside = np.arange(len(values))
    while len(outside):
        values[outside] = _feistel(values[outside], half_bits, keys[outside])
        outside = outside[values[outside] >= size]
    return values.astype(np.int64)


def _feistel(values: UInt64Array, half_bits: np.uint64, keys: UInt64Array) -> UInt64Array:
    mask = (np.uint64(1) << half_bits) - np.uint64(1)
    left, right = values >> half_bits, values & mask
    for number in range(_ROUNDS):
        left, right = right, left ^ (splitmix64(right ^ splitmix64(keys + np.uint64(number))) & mask)
    return (left << half_bits) | right
