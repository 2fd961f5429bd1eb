"""Elementwise loops over contiguous numbers, shared by several kernels."""

from normscope.ops.fused.compiler import compiled, vectorize


@compiled
def fill(numbers, value, count):
    vectorize()
    for j in range(count):
        numbers[j] = value


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
