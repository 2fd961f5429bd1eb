"""Pairwise test parametrization: the default suite runs enough cases to cover every pair of values.

Most bugs need one value or a combination of two (a dtype and a memory layout, say). `make test` runs a pairwise cover,
or only each value once where the axes have little to do with each other; `make test-all` runs the full product.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest


def cover(sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """A small list of index rows (one index per axis) that covers every pair of values of any two axes."""
    axes = range(len(sizes))
    if len(sizes) == 1:
        return [(i,) for i in range(sizes[0])]
    open_pairs = {
        ((a, i), (b, j)) for a, b in itertools.combinations(axes, 2) for i in range(sizes[a]) for j in range(sizes[b])
    }
    rows = []
    while open_pairs:
        row = dict(min(open_pairs))
        for axis in axes:
            if axis not in row:
                row[axis] = max(range(sizes[axis]), key=lambda v: len(_pairs({**row, axis: v}) & open_pairs))
        open_pairs -= _pairs(row)
        rows.append(tuple(row[axis] for axis in axes))
    return sorted(set(rows))


def _pairs(row: Mapping[int, int]) -> set[tuple[tuple[int, int], tuple[int, int]]]:
    return set(itertools.combinations(sorted(row.items()), 2))


def chiefly(values: Iterable[Any], others: Iterable[Any]) -> list[Any]:
    """Parameter values: `values` run in the default suite, `others` only in the exhaustive one."""
    if any(isinstance(given, set | frozenset) for given in (values, others)):
        raise TypeError("a set has another order in every process, and parallel workers must collect the same tests")
    return [*values, *(pytest.param(other, marks=pytest.mark.exhaustive) for other in others)]


Axis = Mapping[str, Any] | Iterable[str]
"""A mapping from id to value, or the values if they are their own ids."""


def every_pair(**axes: Axis) -> pytest.MarkDecorator:
    """Parametrize over the product of the axes; cases outside the pairwise cover are marked exhaustive."""
    return _product(cover, axes)


def every_value(**axes: Axis) -> pytest.MarkDecorator:
    """Parametrize over the product of the axes; all but a few cases that have each value are marked exhaustive."""
    return _product(each_once, axes)


def each_once(sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """As many index rows as the longest axis has values: each value of each axis is in one of them."""
    return [tuple(i % size for size in sizes) for i in range(max(sizes))]


def _product(
    choose: Callable[[Sequence[int]], list[tuple[int, ...]]], axes: Mapping[str, Axis]
) -> pytest.MarkDecorator:
    tables = {
        name: dict(values) if isinstance(values, Mapping) else {v: v for v in values} for name, values in axes.items()
    }
    ids = [list(table) for table in tables.values()]
    chosen = set(choose([len(names) for names in ids]))
    parameters = [
        pytest.param(
            *(table[names[i]] for table, names, i in zip(tables.values(), ids, row, strict=True)),
            id="-".join(names[i] for names, i in zip(ids, row, strict=True)),
            marks=() if row in chosen else pytest.mark.exhaustive,
        )
        for row in itertools.product(*(range(len(names)) for names in ids))
    ]
    return pytest.mark.parametrize(tuple(tables), parameters)
