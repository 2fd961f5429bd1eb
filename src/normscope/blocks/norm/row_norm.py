"""Base class of LayerNorm and RMSNorm, which normalize the last dimensions."""

from collections.abc import Sequence
from typing import Any

from normscope.blocks.norm.base import Norm, ScopeText
from normscope.blocks.norm.checks import resolve_scope, to_positive_int
from normscope.errors import ConfigError


class _RowNorm(Norm):
    """Base class of LayerNorm and RMSNorm: an elementwise weight over normalized_shape."""

    def __init__(
        self, normalized_shape: int | Sequence[int] | ScopeText, affine: bool, sizes: dict[str, Any], **options: Any
    ) -> None:
        scope, sizes = resolve_scope(normalized_shape, sizes, lambda: _last_axes(normalized_shape))
        names = [axis.name for axis in scope.axes if axis.bracketed]
        super().__init__(scope, affine=" ".join(names) if affine else None, **options, **sizes)
        self._normalized_shape = tuple(sizes[name] for name in names if name in sizes)
        self.elementwise_affine = affine

    @property
    def normalized_shape(self) -> tuple[int, ...]:
        return self._normalized_shape

    @normalized_shape.setter
    def normalized_shape(self, shape: object) -> None:
        name = type(self).__name__
        raise ConfigError(f"normalized_shape of an existing {name} cannot be changed\nfix: make a new layer")


def _last_axes(normalized_shape: object) -> tuple[str, dict[str, int]]:
    """Return the scope and the sizes for torch's normalized_shape."""
    given = tuple(normalized_shape) if isinstance(normalized_shape, list | tuple) else (normalized_shape,)
    if not given:
        raise ConfigError("normalized_shape is empty; give the sizes of the last axes, one or more")
    shape = [to_positive_int("normalized_shape", size) for size in given]
    sizes = {"d": shape[0]} if len(shape) == 1 else {f"d{i}": size for i, size in enumerate(shape)}
    return f"... [{' '.join(sizes)}]", sizes
