"""Checks of inputs and options of the topics."""

import math

from torch import Tensor

from normscope.checks import is_integer, is_number
from normscope.errors import ConfigError, ShapeError


def check_rank(x: Tensor, layer: str, least: int, most: int | None = None, example: str = "") -> Tensor:
    """Return the tensor if it has a valid number of dimensions."""
    if x.dim() >= least and (most is None or x.dim() <= most):
        return x
    expected = f"{least} or more" if most is None else str(least)
    dimensions = "dimension" if expected == "1" else "dimensions"
    example = example or ("[" * least + "1, 2" + "]" * least)
    raise ShapeError(
        f"{layer} expects a tensor of {expected} {dimensions}, but got {x.dim()}: shape {tuple(x.shape)}"
        f'\nfix: pass --input "{example}", or a .npy file with {expected} {dimensions}'
    )


def as_batch(x: Tensor, layer: str) -> Tensor:
    """Return a batch of sequences, (b, s, d); a single sequence, (s, d), becomes a batch of one."""
    batch = x.unsqueeze(0) if x.dim() == 2 else x
    return check_rank(batch, layer, least=3, most=3, example="[[[1, 0], [0, 1], [1, 1]]]")


def format_number(number: float) -> str:
    """Format a number of the input in full; beyond the precision of float32, as approximate.

    >>> format_number(1.5), format_number(1e6), format_number(1e8)
    ('1.5', '1000000', 'about 100000000')
    """
    if not number.is_integer():
        return f"{number:g}"
    return f"{'about ' if abs(number) > 2**24 else ''}{number:.0f}"


def axis_names(x: Tensor, names: str) -> tuple[str, ...]:
    """Return the last names, one per dimension; none if the tensor has more dimensions than names."""
    axes = tuple(names.split())
    return axes[len(axes) - x.dim() :] if x.dim() <= len(axes) else ()


def image_axis_names(x: Tensor) -> tuple[str, ...]:
    """Return the axis names of images: samples, channels, positions."""
    return {2: ("n", "c"), 3: ("n", "c", "w"), 4: ("n", "c", "h", "w")}.get(x.dim(), ())


def resolve_heads(width: int, heads: int | None) -> int:
    """Return the number of heads; by default two, or one if the width is odd."""
    if heads is None:
        return 1 if width % 2 else 2
    if not is_integer(heads) or width % heads:
        divisors = ", ".join(str(size) for size in range(1, width + 1) if width % size == 0)
        raise ConfigError(f"the width {width} is not divisible by heads={heads!r}\nfix: --heads with one of {divisors}")
    return heads


def check_eps(eps: float) -> None:
    if not (is_number(eps) and 0 <= eps < math.inf):
        raise ConfigError(f"eps={eps!r} must be a number >= 0\nfix: --eps 1e-5")
