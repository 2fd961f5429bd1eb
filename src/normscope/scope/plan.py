"""Binding: dimensions + a shape -> the plan that a norm follows."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from normscope.errors import DtypeError, ScopeError
from normscope.scope.grammar import Axis, Dimension, Span, SplitDimension, flatten_axes, full_span, is_ellipsis


@dataclass(frozen=True)
class Plan:
    """A scope bound to a shape: what a norm has to do, in numbers.

    `split_shape` is the shape with every split dimension taken apart; `names` and all dimensions count in it.
    """

    shape: tuple[int, ...]
    names: tuple[str, ...]
    split_shape: tuple[int, ...]
    reduced: tuple[int, ...]
    kept: tuple[int, ...]
    """The dimensions along which every place has statistics of its own."""
    count: int
    """How many values each statistic sees."""
    statistics_shape: tuple[int, ...]
    """The shape of the statistics: one for each place along the kept dimensions."""
    roles: str
    """What each dimension does, in order: "k" for kept, "r" for reduced."""

    def broadcast_shape(self, names: Sequence[str]) -> tuple[int, ...]:
        """The shape that lays a tensor over these axes alone along the whole tensor: 1 everywhere else."""
        return tuple(size if name in names else 1 for name, size in zip(self.names, self.split_shape, strict=True))

    def statistics_broadcast_shape(self) -> tuple[int, ...]:
        """The shape that lays the statistics along the whole tensor: 1 along what is reduced."""
        return tuple([size if role == "k" else 1 for role, size in zip(self.roles, self.split_shape, strict=True)])


def expand(dims: Sequence[Dimension], rank: int) -> list[Dimension]:
    """One entry for each dimension of a tensor of this rank: `...` is repeated as often as it takes."""
    spare = rank - sum(not is_ellipsis(dim) for dim in dims)
    return [entry for dim in dims for entry in [dim] * (spare if is_ellipsis(dim) else 1)]


def bind(text: str, dims: Sequence[Dimension], shape: tuple[int, ...], sizes: Mapping[str, int]) -> Plan:
    """The plan for tensors of this shape."""
    axes = _Binding(text, dims, shape, sizes).axes()
    reduced = tuple([i for i, (axis, _) in enumerate(axes) if axis.bracketed])
    if not reduced:
        raise _Binding(text, dims, shape, sizes).error(
            "the scope is empty here: its brackets hold only '...', and the tensor has no axes left for it",
            span=next(axis.span for axis in flatten_axes(dims) if axis.bracketed),
            fix="give a tensor with at least one more dimension",
        )
    # Plain fields made here, not properties that remember: torch.compile follows this, and those it does not.
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
    """The shape as a tuple; what is no shape is refused. Only where `gaps` are welcome may a size be None."""
    if not isinstance(shape, list | tuple):
        hint = "its shape, x.shape" if hasattr(type(shape), "shape") else "for instance (2, 4, 3, 3)"
        raise DtypeError(f"a shape is a tuple of whole numbers, but got {type(shape).__name__}; give {hint}")
    if not gaps and any(size is None for size in shape):
        raise DtypeError(f"a shape is a tuple of whole numbers, but got {tuple(shape)}; give every size")
    return cast(tuple[int, ...], tuple(shape))


def dimensions(text: str, dims: Sequence[Dimension], rank: int) -> list[Dimension]:
    """One entry for each dimension of a tensor of this rank; a rank that does not fit is refused."""
    _Binding(text, dims, (None,) * rank, {}).check_rank()
    return expand(dims, rank)


def known_sizes(
    text: str, dims: Sequence[Dimension], shape: Sequence[int | None], sizes: Mapping[str, int]
) -> dict[str, int]:
    """What a shape with gaps (None) tells of the sizes of the axes."""
    axes = _Binding(text, dims, check_shape(shape, gaps=True), sizes).axes()
    return {axis.name: size for axis, size in axes if size is not None and not axis.is_ellipsis}


def check_sizes(text: str, dims: Sequence[Dimension], sizes: Mapping[str, int]) -> None:
    """Refuse a size for an axis that is not there, and a size that is not a whole number above zero."""
    places = {axis.name: axis.span for axis in flatten_axes(dims) if not axis.is_ellipsis}
    for name, size in sizes.items():
        if name not in places:
            raise ScopeError(
                f"a size was given for axis {name!r}, which the scope does not have",
                text=text,
                span=full_span(text),
                given=f"{name}={size!r}",
                fix=f"its axes are: {' '.join(places)}" if places else "leave it out: '...' has no size of its own",
            )
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ScopeError(
                f"the size of axis {name!r} must be a whole number above zero",
                text=text,
                span=places[name],
                given=f"{name}={size!r}",
                fix=f"for instance {name}=8",
            )


@dataclass(frozen=True)
class _Binding:
    """What is being bound to what, so that every error can name it."""

    text: str
    dims: Sequence[Dimension]
    shape: tuple[int | None, ...]
    sizes: Mapping[str, int]

    def axes(self) -> list[tuple[Axis, int | None]]:
        """Every axis with its size, split dimensions taken apart; None where the shape has a gap."""
        check_sizes(self.text, self.dims, self.sizes)
        self._check_shape()
        self.check_rank()
        dims = zip(expand(self.dims, len(self.shape)), self.shape, strict=True)
        return [pair for dim, size in dims for pair in zip(flatten_axes([dim]), self._parts(dim, size), strict=True)]

    def _check_shape(self) -> None:
        # A compiler's symbolic sizes are no `int`: so this asks what a size is not.
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
                f"the sizes of {' and '.join(repr(axis.name) for axis in unknown)} cannot all be worked out",
                span=split.span,
                fix=f"give all but one, for instance {', '.join(f'{axis.name}=2' for axis in unknown[:-1])}",
            )
        product = math.prod([self.sizes[axis.name] for axis in known])  # a list: torch.compile reads no generator here
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
    """The divisors for a message: the smaller ones first, with an ellipsis where there are too many to read."""
    furthest = min(math.isqrt(number), 10_000)  # a message about a huge size must not take long either
    low = [d for d in range(1, furthest + 1) if number % d == 0]
    shown = [str(d) for d in sorted({*low, *(number // d for d in low)})]
    if len(shown) > most:
        shown = [*shown[: most - 1], "...", shown[-1]]
    return ", ".join(shown)
