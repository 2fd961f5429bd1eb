"""`Scope`: a parsed expression with brackets; `Axes`: one without, for the axes of a gain and a bias."""

import functools
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from normscope.errors import ScopeError, ShapeError
from normscope.scope.grammar import Axis, Dimension, flatten_axes, full_span, parse
from normscope.scope.plan import Binding, Plan, check_shape, check_sizes


@dataclass(frozen=True)
class Scope:
    """A parsed scope: which axes a tensor has, and which of them share statistics.

    >>> scope = Scope.parse("n (g [c]) h w")
    >>> plan = scope.bind((2, 8, 3, 3), g=4)
    >>> plan.split_shape, plan.reduced
    ((2, 4, 2, 3, 3), (2,))
    >>> plan.count, plan.statistics_shape  # 2 x 4 x 3 x 3 statistics over 2 values each
    (2, (2, 4, 3, 3))
    """

    text: str
    dims: tuple[Dimension, ...] = field(compare=False)  # determined by the text, whose hash is cached

    @classmethod
    def parse(cls, text: "str | Scope") -> "Scope":
        """Parse a scope from text; errors raise a `ScopeError` that points at the position."""
        if isinstance(text, Scope):
            return text
        dims = parse(text)
        if not any(axis.bracketed for axis in flatten_axes(dims)):
            problem = "the scope is empty: no axis is in brackets, so no two values would share a statistic"
            fix = "bracket the axes that share statistics, for instance 'n [c h w]'"
            raise ScopeError(problem, text=text, span=full_span(text), fix=fix)
        return cls(text, dims)

    def __str__(self) -> str:
        return self.text

    @property
    def axes(self) -> tuple[Axis, ...]:
        """Every axis in order, including the parts of split dimensions."""
        return tuple(flatten_axes(self.dims))

    def bind(self, shape: Sequence[int], /, **sizes: int) -> Plan:
        """Return the plan for tensors of this shape. `sizes` resolves split dimensions, for instance `g=8`."""
        shape = check_shape(shape)
        # Cached for plain ints only: True == 1 and 2.0 == 2 would hit the cache, symbolic sizes are not hashable, and
        # torch.compile warns about caches.
        if _compiling() or not all(type(number) is int for number in (*shape, *sizes.values())):
            return Binding(self.text, self.dims, shape, sizes).plan()
        return _bind(self, shape, tuple(sizes.items()))

    def sizes(self, shape: Sequence[int | None], /, **sizes: int) -> dict[str, int]:
        """Return the axis sizes that follow from a shape, in which None marks unknown sizes.

        >>> Scope.parse("n (g [c]) h w").sizes((None, 32, 7, 7), g=8)
        {'g': 8, 'c': 4, 'h': 7, 'w': 7}
        """
        axes = Binding(self.text, self.dims, check_shape(shape, gaps=True), sizes).axes()
        return {axis.name: size for axis, size in axes if size is not None and not axis.is_ellipsis}

    def check_sizes(self, /, **sizes: int) -> None:
        """Check that sizes are positive integers for axes of this scope."""
        check_sizes(self.text, self.dims, sizes)

    def dimensions(self, rank: int) -> list[Dimension]:
        """Return one entry per dimension of a tensor of this rank; raise if the rank does not fit."""
        return Binding(self.text, self.dims, (None,) * rank, {}).dimensions()

    def brackets(self, dimension: int, rank: int) -> bool:
        """Return whether statistics are shared along this dimension of a tensor of `rank` dimensions.

        >>> Scope.parse("[b ...] d").brackets(1, rank=3)
        True
        """
        dims = self.dimensions(rank)
        if not -rank <= dimension < rank:
            raise ShapeError(f"a tensor of {rank} dimensions has no dimension {dimension}")
        return any(axis.bracketed for axis in flatten_axes([dims[dimension]]))


@dataclass(frozen=True)
class Axes:
    """The axes of a weight: `c h w` is a weight of shape (c, h, w), `(g c)` one of length g*c.

    >>> Axes.parse("(g c)").shape(Scope.parse("n (g [c]) [...]"), {"g": 8, "c": 4})
    (32,)
    """

    text: str
    dims: tuple[Dimension, ...]

    @classmethod
    def parse(cls, text: "str | Axes") -> "Axes":
        """Parse axes from text; errors raise a `ScopeError` that points at the position."""
        if isinstance(text, Axes):
            return text
        dims = parse(text)
        for axis in flatten_axes(dims):
            if axis.is_ellipsis:
                fix = "name the axes of the weight, for example affine='c'"
                raise ScopeError("'...' has no fixed size", text=text, span=axis.span, fix=fix)
            if axis.bracketed:
                fix = "name the axes of the weight without brackets, for example affine='c'"
                raise ScopeError("brackets are not allowed here", text=text, span=axis.span, fix=fix)
        if not dims:
            fix = "name the axes of the weight, or pass affine=None for no weight"
            raise ScopeError("no axis is named", text=text, span=full_span(text), fix=fix)
        return cls(text, dims)

    def __str__(self) -> str:
        return self.text

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(axis.name for axis in flatten_axes(self.dims))

    def shape(self, scope: Scope, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Return the shape of the gain. Its axes must be in the scope, in the same order, with known sizes."""
        in_scope = [axis.name for axis in scope.axes if not axis.is_ellipsis]
        previous = -1
        for axis in flatten_axes(self.dims):
            if axis.name not in in_scope:
                raise self._error(axis, "is not in the scope", scope, f"use one of: {' '.join(in_scope)}")
            if in_scope.index(axis.name) < previous:
                order = " ".join(sorted(self.names, key=in_scope.index))
                raise self._error(axis, "comes earlier in the scope", scope, f"keep the scope's order: {order}")
            if axis.name not in sizes:
                raise self._error(axis, "has no known size in the scope", scope, f"give it: {axis.name}=...")
            previous = in_scope.index(axis.name)
        return tuple(math.prod(sizes[axis.name] for axis in flatten_axes([dim])) for dim in self.dims)

    def _error(self, axis: Axis, problem: str, scope: Scope, fix: str) -> ScopeError:
        return ScopeError(f"axis {axis.name!r} {problem} {scope.text!r}", text=self.text, span=axis.span, fix=fix)


@functools.lru_cache(maxsize=4096)
def _bind(scope: Scope, shape: tuple[int, ...], sizes: tuple[tuple[str, int], ...]) -> Plan:
    # A model binds the same few shapes repeatedly.
    return Binding(scope.text, scope.dims, shape, dict(sizes)).plan()


def _compiling() -> bool:
    # Look torch up instead of importing it.
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.compiler.is_compiling())
