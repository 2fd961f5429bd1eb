"""Binding a scope to a shape: dimensions + shape -> `Plan`."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from normscope.errors import DtypeError, ScopeError
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


def expand(dims: Sequence[Dimension], rank: int) -> list[Dimension]:
    """Return one entry per dimension of a tensor of this rank, repeating `...` as needed."""
    spare = rank - sum(not is_ellipsis(dim) for dim in dims)
    return [entry for dim in dims for entry in [dim] * (spare if is_ellipsis(dim) else 1)]


def bind(text: str, dims: Sequence[Dimension], shape: tuple[int, ...], sizes: Mapping[str, int]) -> Plan:
    """Return the plan for tensors of this shape."""
    axes = _Binding(text, dims, shape, sizes).axes()
    reduced = tuple([i for i, (axis, _) in enumerate(axes) if axis.bracketed])
    if not reduced:
        raise _Binding(text, dims, shape, sizes).error(
            "the scope is empty here: its brackets hold only '...', and the tensor has no axes left for it",
            span=next(axis.span for axis in flatten_axes(dims) if axis.bracketed),
            fix="give a tensor with at least one more dimension",
        )
    # Plain fields rather than cached properties, which torch.compile cannot trace.
    split_shape = tuple([size for _, size in axes if size is not None])
    kept = tuple([i for i in range(len(split_shape)) if i not in reduced])
    return Plan(
        shape=shape,
        names=tuple([axis.name for axis, _ in axes]),
        split_shape=split_shape,
        reduced=reduced,
        kept=kept,
        count=math.prod([split_shape[i] for i in reduced]),
        statistics_shape=tuple([split_shape[i] for i in kept]),
        roles="".join(["r" if axis.bracketed else "k" for axis, _ in axes]),
    )


def check_shape(shape: Sequence[int | None], *, gaps: bool = False) -> tuple[int, ...]:
    """Check a shape and return it as a tuple. Sizes may be None only with `gaps=True`."""
    if not isinstance(shape, list | tuple):
        hint = "its shape, x.shape" if hasattr(type(shape), "shape") else "for instance (2, 4, 3, 3)"
        raise DtypeError(f"a shape is a tuple of whole numbers, but got {type(shape).__name__}; give {hint}")
    if not gaps and any(size is None for size in shape):
        raise DtypeError(f"a shape is a tuple of whole numbers, but got {tuple(shape)}; give every size")
    return cast(tuple[int, ...], tuple(shape))


def dimensions(text: str, dims: Sequence[Dimension], rank: int) -> list[Dimension]:
    """Return one entry per dimension of a tensor of this rank; raise if the rank does not fit."""
    _Binding(text, dims, (None,) * rank, {}).check_rank()
    return expand(dims, rank)


def known_sizes(
    text: str, dims: Sequence[Dimension], shape: Sequence[int | None], sizes: Mapping[str, int]
) -> dict[str, int]:
    """Return the axis sizes that follow from a shape, in which None marks unknown sizes."""
    axes = _Binding(text, dims, check_shape(shape, gaps=True), sizes).axes()
    return {axis.name: size for axis, size in axes if size is not None and not axis.is_ellipsis}


def check_sizes(text: str, dims: Sequence[Dimension], sizes: Mapping[str, int]) -> None:
    """Check that sizes are positive integers for axes of the scope."""
    spans = {axis.name: axis.span for axis in flatten_axes(dims) if not axis.is_ellipsis}
    for name, size in sizes.items():
        if name not in spans:
            raise ScopeError(
                f"a size was given for axis {name!r}, which the scope does not have",
                text=text,
                span=full_span(text),
                given=f"{name}={size!r}",
                fix=f"its axes are: {' '.join(spans)}" if spans else "leave it out: '...' has no size of its own",
            )
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ScopeError(
                f"the size of axis {name!r} must be a whole number above zero",
                text=text,
                span=spans[name],
                given=f"{name}={size!r}",
                fix=f"for instance {name}=8",
            )


@dataclass(frozen=True)
class _Binding:
    """The arguments of a binding, for error messages."""

    text: str
    dims: Sequence[Dimension]
    shape: tuple[int | None, ...]
    sizes: Mapping[str, int]

    def axes(self) -> list[tuple[Axis, int | None]]:
        """Return every axis with its size, split dimensions unflattened; None for unknown sizes."""
        check_sizes(self.text, self.dims, self.sizes)
        self._check_shape()
        self.check_rank()
        dims = zip(expand(self.dims, len(self.shape)), self.shape, strict=True)
        return [pair for dim, size in dims for pair in zip(flatten_axes([dim]), self._parts(dim, size), strict=True)]

    def _check_shape(self) -> None:
        # Symbolic sizes of torch.compile are not `int`, so test for wrong types instead.
        if any(size is not None and (isinstance(size, bool | float | str) or size < 0) for size in self.shape):
            raise self.error(
                "every size in a shape must be a whole number, zero or above",
                span=full_span(self.text),
                fix="give the sizes that the tensor has, for instance x.shape",
            )

    def check_rank(self) -> None:
        fixed = sum(not is_ellipsis(dim) for dim in self.dims)
        open_ended = fixed < len(self.dims)
        rank = len(self.shape)
        if rank == fixed or (open_ended and rank > fixed):
            return
        wanted = f"{'at least ' if open_ended else ''}{fixed} dimension{'s' if fixed != 1 else ''}"
        raise self.error(
            f"the scope names {wanted}, but the tensor has {rank}",
            span=full_span(self.text),
            fix=f"give a tensor with {wanted}, or name fewer axes"
            if open_ended
            else "name one axis for each dimension of the tensor, or write '...' for any number of them",
        )

    def _parts(self, dim: Dimension, size: int | None) -> Sequence[int | None]:
        if size is None:
            return [self.sizes.get(axis.name) for axis in flatten_axes([dim])]
        return self._split(dim, size) if isinstance(dim, SplitDimension) else [self._whole(dim, size)]

    def _whole(self, axis: Axis, size: int) -> int:
        wanted = self.sizes.get(axis.name, size)
        if wanted != size:
            raise self.error(
                f"axis {axis.name!r} has size {size} in the tensor, but {axis.name}={wanted} was given",
                span=axis.span,
                fix=f"give a tensor with {wanted} there" + (f", or {axis.name}={size}" if size else ""),
            )
        return size

    def _split(self, split: SplitDimension, size: int) -> list[int]:
        known = [axis for axis in split.axes if axis.name in self.sizes]
        unknown = [axis for axis in split.axes if axis.name not in self.sizes]
        if len(unknown) > 1:
            raise self.error(
                f"the sizes of {' and '.join(repr(axis.name) for axis in unknown)} cannot all be inferred",
                span=split.span,
                fix=f"give all but one, for instance {', '.join(f'{axis.name}=2' for axis in unknown[:-1])}",
            )
        product = math.prod([self.sizes[axis.name] for axis in known])  # not a generator: torch.compile
        factors = " x ".join(f"{axis.name}={self.sizes[axis.name]}" for axis in known)
        if not unknown and product != size:
            raise self.error(
                f"{factors} makes {product}, but the tensor has {size} there",
                span=split.span,
                fix=f"give a tensor with {product} there" + (f", or sizes that make {size}" if size else ""),
            )
        if size % product:
            raise self.error(
                f"an axis of size {size} cannot be divided by {factors}",
                span=split.span,
                fix=f"use {'a divisor' if len(known) == 1 else 'sizes that make a divisor'} of {size}: "
                + _divisors(size),
            )
        return [self.sizes.get(axis.name, size // product) for axis in split.axes]

    def error(self, problem: str, *, span: Span, fix: str) -> ScopeError:
        shape = str(self.shape).replace("None", "?")
        given = [f"shape {shape}", *(f"{name}={size}" for name, size in self.sizes.items())]
        return ScopeError(problem, text=self.text, span=span, given=", ".join(given), fix=fix)


def _divisors(number: int, most: int = 12) -> str:
    """Format the divisors for a message, with an ellipsis if there are many."""
    limit = min(math.isqrt(number), 10_000)  # bounded, so that huge sizes do not take long
    low = [d for d in range(1, limit + 1) if number % d == 0]
    shown = [str(d) for d in sorted({*low, *(number // d for d in low)})]
    if len(shown) > most:
        shown = [*shown[: most - 1], "...", shown[-1]]
    return ", ".join(shown)
