"""Random scopes, and a norm by its definition: cell by cell, in plain Python, sharing nothing with the library."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]
Key = tuple[int, ...]

# The examples are the same on every run, and no example is judged by how long it takes.
fixed = settings(derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])


@dataclass(frozen=True)
class RandomScope:
    """A scope as text, with the shape of a tensor that it fits.

    `names`, `bracketed` and `cells` go by axes (split dimensions taken apart), `shape` by dimensions.
    """

    text: str
    names: tuple[str, ...]
    bracketed: tuple[bool, ...]
    cells: tuple[int, ...]
    shape: tuple[int, ...]
    dims: tuple[tuple[int, ...], ...]  # the axes of each dimension
    sized: tuple[str, ...]  # the axes whose size has to be told: those of split dimensions
    rest: tuple[int, ...]  # the axes that `...` stands for

    @property
    def kept(self) -> tuple[int, ...]:
        return tuple(i for i, inside in enumerate(self.bracketed) if not inside)

    @property
    def count(self) -> int:
        return math.prod(size for size, inside in zip(self.cells, self.bracketed, strict=True) if inside)

    def sizes(self, *names: str) -> dict[str, Any]:
        """The sizes to tell: those that are needed, and those of the named axes."""
        return {n: s for n, s in zip(self.names, self.cells, strict=True) if n in self.sized or n in names}

    def named(self) -> list[str]:
        return [name for i, name in enumerate(self.names) if i not in self.rest]


@st.composite
def scopes(draw: st.DrawFn, largest: int = 3) -> RandomScope:
    """One to four axes, some bracketed, neighbours merged into `(a b)` at random, a run of them written as `...`."""
    rank = draw(st.integers(1, 4))
    names = tuple("abcd"[:rank])
    bracketed = draw(st.tuples(*[st.booleans()] * rank).filter(any))
    cells = draw(st.tuples(*[st.integers(1, largest)] * rank))
    dims: list[tuple[int, ...]] = []
    for axis in range(rank):
        if dims and draw(st.integers(0, 3)) == 0:
            dims[-1] += (axis,)
        else:
            dims.append((axis,))
    start = draw(st.integers(0, len(dims) - 1))
    run: list[int] = []
    for dim in dims[start : start + draw(st.integers(0, 2))]:
        if len(dim) > 1 or bracketed[dim[0]] != bracketed[dims[start][0]]:
            break
        run.append(dim[0])
    tokens = []
    for dim in dims:
        if run and dim == (run[0],):
            tokens.append("[...]" if bracketed[dim[0]] else "...")
        elif dim[0] not in run:
            parts = " ".join(f"[{names[i]}]" if bracketed[i] else names[i] for i in dim)
            tokens.append(f"({parts})" if len(dim) > 1 else parts)
    return RandomScope(
        text=" ".join(tokens),
        names=names,
        bracketed=bracketed,
        cells=cells,
        shape=tuple(math.prod(cells[i] for i in dim) for dim in dims),
        dims=tuple(dims),
        sized=tuple(names[i] for dim in dims if len(dim) > 1 for i in dim),
        rest=tuple(run),
    )


@st.composite
def masks(draw: st.DrawFn, shape: tuple[int, ...]) -> Tensor:
    """A mask of some leading dimensions, or of full rank; in both, 1 where it does not vary."""
    rank = draw(st.integers(1, len(shape)))
    sizes = [draw(st.sampled_from([1, size])) for size in shape[:rank]]
    values = draw(st.lists(st.booleans(), min_size=math.prod(sizes), max_size=math.prod(sizes)))
    return torch.tensor(values, dtype=torch.bool).reshape(sizes)


def spread(mask: Tensor | None, scope: RandomScope) -> NDArray[np.bool_]:
    """The mask with a value for every cell, along the axes."""
    if mask is None:
        return np.ones(scope.cells, dtype=bool)
    full = mask.reshape(*mask.shape, *[1] * (len(scope.shape) - mask.dim())).expand(scope.shape)
    result: NDArray[np.bool_] = full.reshape(scope.cells).numpy()
    return result


@dataclass(frozen=True)
class Statistics:
    """What each group of cells knows: cells with the same place along the kept axes share a mean and a square."""

    mean: Mapping[Key, float]
    square: Mapping[Key, float]
    count: Mapping[Key, int]


def measure(x: Array, scope: RandomScope, real: NDArray[np.bool_], statistic: str) -> Statistics:
    groups: dict[Key, list[float]] = {}
    for cell in np.ndindex(*scope.cells):
        group = groups.setdefault(tuple(cell[i] for i in scope.kept), [])
        if real[cell]:
            group.append(float(x[cell]))
    mean, square = {}, {}
    for key, values in groups.items():
        n = max(len(values), 1)
        mean[key] = math.fsum(values) / n if statistic == "standardize" else 0.0
        square[key] = math.fsum((v - mean[key]) ** 2 for v in values) / n
    return Statistics(mean, square, {key: len(values) for key, values in groups.items()})


def normalize(
    x: Array,
    scope: RandomScope,
    *,
    statistic: str,
    eps: float,
    real: NDArray[np.bool_],
    owners: tuple[str, ...] = (),
    weight: Array | None = None,
    bias: Array | None = None,
) -> Array:
    """y = (x - mean) / sqrt(square + eps) * weight + bias for every real cell, and zero for every other."""
    found = measure(x, scope, real, statistic)
    places = [scope.names.index(name) for name in owners]
    y = np.zeros(scope.cells)
    for cell in np.ndindex(*scope.cells):
        if real[cell]:
            key, owner = tuple(cell[i] for i in scope.kept), tuple(cell[i] for i in places)
            y[cell] = (x[cell] - found.mean[key]) / math.sqrt(found.square[key] + eps)
            y[cell] = y[cell] * (1 if weight is None else weight[owner]) + (0 if bias is None else bias[owner])
    return y


def remember(
    found: Statistics, scope: RandomScope, tracked: tuple[str, ...], old: dict[str, Array], momentum: float
) -> dict[str, Array]:
    """The running statistics after one batch: the average over the groups that share a place and saw something."""
    places = [scope.kept.index(scope.names.index(name)) for name in tracked]
    new = {name: values.copy() for name, values in old.items()}
    for place in np.ndindex(*[scope.cells[scope.names.index(name)] for name in tracked]):
        here = [(k, n) for k, n in found.count.items() if tuple(k[i] for i in places) == place]
        for name in old:
            if name == "running_mean":
                said = [found.mean[k] for k, n in here if n]
            elif name == "running_var":
                said = [found.square[k] * n / (n - 1) for k, n in here if n > 1]
            else:
                said = [found.square[k] for k, n in here if n]
            if said:
                new[name][place] = (1 - momentum) * old[name][place] + momentum * math.fsum(said) / len(said)
    return new
