"""`Axes`: an expression without brackets, for the axes of a gain and a bias."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from normscope.errors import ScopeError
from normscope.scope.grammar import Axis, Dimension, flatten_axes, full_span, parse
from normscope.scope.scope import Scope


@dataclass(frozen=True)
class Axes:
    """The axes of a gain: `c h w` is a gain of shape (c, h, w), `(g c)` one of length g*c.

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
                fix = "name the axes that own a gain, for instance affine='c'"
                raise ScopeError("'...' has no fixed size", text=text, span=axis.span, fix=fix)
            if axis.bracketed:
                fix = "name the axes that own a gain without brackets, for instance affine='c'"
                raise ScopeError("brackets are not allowed here", text=text, span=axis.span, fix=fix)
        if not dims:
            fix = "name the axes that own a gain, or give affine=None for no gain"
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
