"""What a topic refuses: tensors that the layer cannot take, and settings that do not fit them."""

import math

from torch import Tensor

from normscope.checks import is_integer, is_number
from normscope.errors import ConfigError, ShapeError


def check_rank(x: Tensor, layer: str, least: int, most: int | None = None, example: str = "") -> Tensor:
    """The tensor itself, if it has as many dimensions as the layer takes."""
    if x.dim() >= least and (most is None or x.dim() <= most):
        return x
    wanted = f"{least} or more" if most is None else str(least)
    dimensions = "dimension" if wanted == "1" else "dimensions"
    example = example or ("[" * least + "1, 2" + "]" * least)
    raise ShapeError(
        f"{layer} takes a tensor of {wanted} {dimensions}, but got {x.dim()}: shape {tuple(x.shape)}"
        f'\nfix: give as many, for instance --input "{example}", or an array of {wanted} in a .npy file'
    )


def as_batch(x: Tensor, layer: str) -> Tensor:
    """Texts of tokens, (b, s, d); one text alone, (s, d), is a batch of one."""
    text = x.unsqueeze(0) if x.dim() == 2 else x
    return check_rank(text, layer, least=3, most=3, example="[[[1, 0], [0, 1], [1, 1]]]")


def format_number(number: float) -> str:
    """A number of the user's as it was typed; beyond what float32 tells apart, about so.

    >>> format_number(1.5), format_number(1e6), format_number(1e8)
    ('1.5', '1000000', 'about 100000000')
    """
    if not number.is_integer():
        return f"{number:g}"
    return f"{'about ' if abs(number) > 2**24 else ''}{number:.0f}"


def axis_names(x: Tensor, names: str) -> tuple[str, ...]:
    """The last names for a tensor of few dimensions; none for one of more than there are names."""
    axes = tuple(names.split())
    return axes[len(axes) - x.dim() :] if x.dim() <= len(axes) else ()


def image_axis_names(x: Tensor) -> tuple[str, ...]:
    """Samples, channels, and what positions are called."""
    return {2: ("n", "c"), 3: ("n", "c", "w"), 4: ("n", "c", "h", "w")}.get(x.dim(), ())


def resolve_heads(width: int, heads: int | None) -> int:
    """Two heads unless told otherwise, or one where the width is odd."""
    if heads is None:
        return 1 if width % 2 else 2
    if not is_integer(heads) or width % heads:
        divisors = ", ".join(str(size) for size in range(1, width + 1) if width % size == 0)
        raise ConfigError(
            f"a width of {width} cannot be dealt out to heads={heads!r}\nfix: --heads with one of {divisors}"
        )
    return heads


def check_eps(eps: float) -> None:
    if not (is_number(eps) and 0 <= eps < math.inf):
        raise ConfigError(f"eps={eps!r} must be a number, zero or more: it is added under a root\nfix: --eps 1e-5")
