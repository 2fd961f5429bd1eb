"""`Scope`: an expression with brackets, ready to be bound to shapes."""

import functools
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from normscope.errors import ScopeError, ShapeError
from normscope.scope import plan as planning
from normscope.scope.grammar import Axis, Dimension, flatten_axes, full_span, parse
from normscope.scope.plan import Plan


@dataclass(frozen=True)
class Scope:
    """A parsed scope: which axes a tensor has, and which of them share statistics.

    >>> scope = Scope.parse("n (g [c]) h w")
    >>> plan = scope.bind((2, 8, 3, 3), g=4)
    >>> plan.split_shape, plan.reduced
    ((2, 4, 2, 3, 3), (2,))
    >>> plan.count, plan.statistics_shape  # two values share a mean, and there are 2 x 4 x 3 x 3 means
    (2, (2, 4, 3, 3))
    """

    text: str
    dims: tuple[Dimension, ...] = field(compare=False)  # the text says it all, and strings remember their hash

    @classmethod
    def parse(cls, text: "str | Scope") -> "Scope":
        """Read a scope from text; a fault raises a `ScopeError` that points at it."""
        if isinstance(text, Scope):
            return text
        dims = parse(text)
        if not any(axis.bracketed for axis in flatten_axes(dims)):
            raise ScopeError(
                "the scope is empty: no axis is in brackets, so no two values would share a statistic",
                text=text,
                span=full_span(text),
                fix="bracket the axes that share statistics, for instance 'n [c h w]'",
            )
        return cls(text, dims)

    def __str__(self) -> str:
        return self.text

    @property
    def axes(self) -> tuple[Axis, ...]:
        """Every axis in order, the parts of split dimensions included."""
        return tuple(flatten_axes(self.dims))

    def bind(self, shape: Sequence[int], /, **sizes: int) -> Plan:
        """The plan for tensors of this shape. `sizes` tell what the shape alone does not: `g=8`."""
        shape = planning.check_shape(shape)
        numbers = (*shape, *sizes.values())
        # Remembered for plain whole numbers only: True == 1 and 2.0 == 2 would find the plans of those, the symbolic
        # sizes of a traced model have no hash, and torch.compile warns about a cache.
        if _compiling() or not all(type(number) is int for number in numbers):
            return planning.bind(self.text, self.dims, shape, sizes)
        return _bind(self, shape, tuple(sizes.items()))

    def sizes(self, shape: Sequence[int | None], /, **sizes: int) -> dict[str, int]:
        """The sizes of the axes as far as a shape with gaps tells them.

        >>> Scope.parse("n (g [c]) h w").sizes((None, 32, 7, 7), g=8)
        {'g': 8, 'c': 4, 'h': 7, 'w': 7}
        """
        return planning.known_sizes(self.text, self.dims, shape, sizes)

    def check_sizes(self, /, **sizes: int) -> None:
        """Refuse sizes of axes that the scope does not have, and sizes that no axis can have."""
        planning.check_sizes(self.text, self.dims, sizes)

    def brackets(self, dimension: int, rank: int) -> bool:
        """Whether statistics are shared along this dimension of a tensor of `rank` dimensions.

        >>> Scope.parse("[b ...] d").brackets(1, rank=3)
        True
        """
        dims = planning.dimensions(self.text, self.dims, rank)
        if not -rank <= dimension < rank:
            raise ShapeError(f"a tensor of {rank} dimensions has no dimension {dimension}")
        return any(axis.bracketed for axis in flatten_axes([dims[dimension]]))


@functools.lru_cache(maxsize=4096)
def _bind(scope: Scope, shape: tuple[int, ...], sizes: tuple[tuple[str, int], ...]) -> Plan:
    # A model binds the same few shapes over and over: remembering the plans keeps the notation off the clock.
    return planning.bind(scope.text, scope.dims, shape, dict(sizes))


def _compiling() -> bool:
    # Looking torch up instead of importing it keeps this folder free of it.
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.compiler.is_compiling())
