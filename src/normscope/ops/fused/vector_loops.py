"""Loops over numbers that lie one after the other: the smallest parts of several kernels."""

from normscope.ops.fused.compiler import compiled, in_vectors


@compiled
def fill(numbers, value, count):
    in_vectors()
    for j in range(count):
        numbers[j] = value


@compiled
def add(x, branch, total, count):
    in_vectors()
    for j in range(count):
        total[j] = x[j] + branch[j]


@compiled
def add_to(numbers, more, count):
    in_vectors()
    for j in range(count):
        numbers[j] += more[j]
