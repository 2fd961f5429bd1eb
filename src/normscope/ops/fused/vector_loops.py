"""Loops over contiguous numbers, shared by several kernels."""

import numpy as np

from normscope.ops.fused.compiler import compiled, vectorize


@compiled
def fill(numbers, value, count):
    vectorize()
    for j in range(count):
        numbers[j] = value


@compiled
def copy(numbers, result, count):
    """Copy, with a conversion if the types differ."""
    vectorize()
    for j in range(count):
        result[j] = numbers[j]


@compiled
def add(x, branch, total, count):
    vectorize()
    for j in range(count):
        total[j] = x[j] + branch[j]


@compiled
def add_to(numbers, more, count):
    vectorize()
    for j in range(count):
        numbers[j] += more[j]


@compiled
def sums_around(x, pivot, count):
    """Return the sum of x - pivot, and of its square."""
    vectorize()
    total, square = 0.0, 0.0
    for j in range(count):
        value = np.float64(x[j]) - pivot
        total += value
        square += value * value
    return total, square


@compiled
def sum_blocks(sums, blocks, count):
    """Add all blocks of `count` numbers to the first, in order."""
    vectorize()
    for block in range(1, blocks):
        for j in range(count):
            sums[j] += sums[block * count + j]
