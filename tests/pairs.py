"""Parametrizations over several axes, of which the default suite runs enough to see every pair of values together.

Most faults show with one value or with two that meet (a type and a layout, say); few need three. So `make test` runs
a cover of all pairs, and `make test-all` the whole product.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest


def cover(sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """Few rows of indices, one for each axis, in which any two values of any two axes meet at least once."""
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
    """The values of a parameter: some that the default suite runs, and others that only the exhaustive one does."""
    return [*values, *(pytest.param(other, marks=pytest.mark.exhaustive) for other in others)]


def every_pair(**axes: Mapping[str, Any] | Iterable[str]) -> pytest.MarkDecorator:
    """Run a test for the whole product of its axes; what a cover of the pairs leaves out is marked as exhaustive.

    Args:
        axes: the values of each argument by their ids, or just the ids where they are the values.
    """
    tables = {
        name: dict(values) if isinstance(values, Mapping) else {v: v for v in values} for name, values in axes.items()
    }
    ids = [list(table) for table in tables.values()]
    chosen = set(cover([len(names) for names in ids]))
    parameters = [
        pytest.param(
            *(table[names[i]] for table, names, i in zip(tables.values(), ids, row, strict=True)),
            id="-".join(names[i] for names, i in zip(ids, row, strict=True)),
            marks=() if row in chosen else pytest.mark.exhaustive,
        )
        for row in itertools.product(*(range(len(names)) for names in ids))
    ]
    return pytest.mark.parametrize(tuple(tables), parameters)
