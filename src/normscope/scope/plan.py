"""Binding a scope to a shape: dimensions + shape -> `Plan`."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from normscope.errors import ArgumentTypeError, ScopeError
from normscope.scope.grammar import Axis, Dimension, Span, SplitDimension, flatten_axes, full_span, is_ellipsis


@dataclass(frozen=True)
class Plan:
    """A scope bound to a shape: which dimensions a norm reduces.

    `split_shape` is the shape with split dimensions unflattened; `names`, `reduced`, `kept` and `roles` refer to it.
    """

    shape: tuple[int, ...]
    names: tuple[str, ...]
    split_shape: tuple[int, ...]
    reduced: tuple[int, ...]
    kept: tuple[int, ...]
    """The dimensions that are not reduced: each index has its own statistics."""
    count: int
    """The number of values per statistic."""
    statistics_shape: tuple[int, ...]
    """The shape of the statistics: the sizes of the kept dimensions."""
    roles: str
    """The role of each dimension, in order: "k" for kept, "r" for reduced."""

    def broadcast_shape(self, names: Sequence[str]) -> tuple[int, ...]:
        """Return the shape in which a tensor over these axes broadcasts over split_shape: 1 in all other axes."""
        return tuple(size if name in names else 1 for name, size in zip(self.names, self.split_shape, strict=True))

    def statistics_broadcast_shape(self) -> tuple[int, ...]:
        """Return the shape in which the statistics broadcast over split_shape: 1 in the reduced axes."""
        return tuple([size if role == "k" else 1 for role, size in zip(self.roles, self.split_shape, strict=True)])


def check_shape(shape: Sequence[int | None], *, gaps: bool = False) -> tuple[int, ...]:
    """Check a shape and return it as a tuple. Sizes may be None only with `gaps=True`."""
    if not isinstance(shape, list | tuple):
        hint = "its shape, x.shape" if hasattr(type(shape), "shape") else "for instance (2, 4, 3, 3)"
        raise ArgumentTypeError(f"a shape must be a tuple of integers, but got {type(shape).__name__}; pass {hint}")
    if not gaps and any(size is None for size in shape):
        raise ArgumentTypeError(f"a shape must be a tuple of integers, but got {tuple(shape)}; pass every size")
    return cast(tuple[int, ...], tuple(shape))


def check_sizes(text: str, dims: Sequence[Dimension], sizes: Mapping[str, int]) -> None:
    """Check that sizes are positive integers for axes of the scope."""
    spans = {axis.name: axis.span for axis in flatten_axes(dims) if not axis.is_ellipsis}
    for name, size in sizes.items():
        given = f"{name}={size!r}"
        if name not in spans:
            problem = f"a size was given for axis {name!r}, which the scope does not have"
            fix = f"its axes are: {' '.join(spans)}" if spans else "remove it: '...' has no size"
            raise ScopeError(problem, text=text, span=full_span(text), given=given, fix=fix)
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            problem = f"the size of axis {name!r} must be a positive integer"
            raise ScopeError(problem, text=text, span=spans[name], given=given, fix=f"for instance {name}=8")


@dataclass(frozen=True)
class Binding:
    """A scope and a shape, in which None marks unknown sizes, with the sizes that the shape does not determine."""

    text: str
    dims: Sequence[Dimension]
    shape: tuple[int | None, ...]
    sizes: Mapping[str, int]

    def plan(self) -> Plan:
        """Return the plan for tensors of this shape."""
        axes = self.axes()
        reduced = tuple([i for i, (axis, _) in enumerate(axes) if axis.bracketed])
        if not reduced:
            problem = "the scope is empty: its brackets contain only '...', which matches no axis of this tensor"
            span = next(axis.span for axis in flatten_axes(self.dims) if axis.bracketed)
            raise self.error(problem, "give a tensor with at least one more dimension", span)
        # Plain fields rather than cached properties, which torch.compile cannot trace.
        split_shape = tuple([size for _, size in axes if size is not None])
        kept = tuple([i for i in range(len(split_shape)) if i not in reduced])
        return Plan(
            shape=cast(tuple[int, ...], self.shape),
            names=tuple([axis.name for axis, _ in axes]),
            split_shape=split_shape,
            reduced=reduced,
            kept=kept,
            count=math.prod([split_shape[i] for i in reduced]),
            statistics_shape=tuple([split_shape[i] for i in kept]),
            roles="".join(["r" if axis.bracketed else "k" for axis, _ in axes]),
        )

    def axes(self) -> list[tuple[Axis, int | None]]:
        """Return every axis with its size, split dimensions unflattened; None for unknown sizes."""
        check_sizes(self.text, self.dims, self.sizes)
        # Symbolic sizes of torch.compile are not `int`, so test for wrong types instead.
        if any(size is not None and (isinstance(size, bool | float | str) or size < 0) for size in self.shape):
            fix = "give the sizes that the tensor has, for instance x.shape"
            raise self.error("every size in a shape must be a non-negative integer", fix)
        dims = zip(self.dimensions(), self.shape, strict=True)
        return [pair for dim, size in dims for pair in zip(flatten_axes([dim]), self._parts(dim, size), strict=True)]

    def dimensions(self) -> list[Dimension]:
        """Return one entry per dimension of the tensor, repeating `...` as needed; raise if its rank does not fit."""
        fixed, rank = sum(not is_ellipsis(dim) for dim in self.dims), len(self.shape)
        open_ended = fixed < len(self.dims)
        if rank != fixed and not (open_ended and rank > fixed):
            wanted = f"{'at least ' if open_ended else ''}{fixed} dimension{'s' if fixed != 1 else ''}"
            fix = "name one axis for each dimension of the tensor, or write '...' for any number of them"
            if open_ended:
                fix = f"give a tensor with {wanted}, or name fewer axes"
            raise self.error(f"the scope names {wanted}, but the tensor has {rank}", fix)
        return [entry for dim in self.dims for entry in [dim] * (rank - fixed if is_ellipsis(dim) else 1)]

    def _parts(self, dim: Dimension, size: int | None) -> Sequence[int | None]:
        if size is None:
            return [self.sizes.get(axis.name) for axis in flatten_axes([dim])]
        return self._split(dim, size) if isinstance(dim, SplitDimension) else [self._whole(dim, size)]

    def _whole(self, axis: Axis, size: int) -> int:
        wanted = self.sizes.get(axis.name, size)
        if wanted != size:
            problem = f"axis {axis.name!r} has size {size} in the tensor, but {axis.name}={wanted} was given"
            fix = f"give a tensor with {wanted} there" + (f", or {axis.name}={size}" if size else "")
            raise self.error(problem, fix, axis.span)
        return size

    def _split(self, split: SplitDimension, size: int) -> list[int]:
        known = [axis for axis in split.axes if axis.name in self.sizes]
        unknown = [axis for axis in split.axes if axis.name not in self.sizes]
        if len(unknown) > 1:
            problem = f"the sizes of {' and '.join(repr(axis.name) for axis in unknown)} cannot all be inferred"
            fix = f"give all but one, for instance {', '.join(f'{axis.name}=2' for axis in unknown[:-1])}"
            raise self.error(problem, fix, split.span)
        product = math.prod([self.sizes[axis.name] for axis in known])  # not a generator: torch.compile
        factors = " x ".join(f"{axis.name}={self.sizes[axis.name]}" for axis in known)
        if not unknown and product != size:
            fix = f"give a tensor with {product} there" + (f", or sizes that make {size}" if size else "")
            raise self.error(f"{factors} makes {product}, but the tensor has {size} there", fix, split.span)
        if size % product:
            fix = f"use {'a divisor' if len(known) == 1 else 'sizes that make a divisor'} of {size}: {_divisors(size)}"
            raise self.error(f"an axis of size {size} cannot be divided by {factors}", fix, split.span)
        return [self.sizes.get(axis.name, size // product) for axis in split.axes]

    def error(self, problem: str, fix: str, span: Span | None = None) -> ScopeError:
        """Return an error that names shape and sizes; it points at the whole scope if no span is given."""
        shape = str(self.shape).replace("None", "?")
        given = ", ".join([f"shape {shape}", *(f"{name}={size}" for name, size in self.sizes.items())])
        return ScopeError(problem, text=self.text, span=span or full_span(self.text), given=given, fix=fix)


def _divisors(number: int, most: int = 12) -> str:
    """Format the divisors for a message, with an ellipsis if there are many."""
    limit = min(math.isqrt(number), 10_000)  # bounded, so that huge sizes do not take long
    low = [d for d in range(1, limit + 1) if number % d == 0]
    shown = [str(d) for d in sorted({*low, *(number // d for d in low)})]
    if len(shown) > most:
        shown = [*shown[: most - 1], "...", shown[-1]]
    return ", ".join(shown)
