"""The user's numbers: read from a .npy file, from text such as "[[1, 2], [3, 4]]" or from Python, and checked."""

import ast
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from normscope.checks import is_integer, is_number
from normscope.errors import ArgumentTypeError, ConfigError, DtypeError, FileError, ShapeError

MAX_DIMENSIONS = 8
TOO_LARGE = "a value is too large for float32 (maximum 3.4e38)\nfix: use smaller numbers"
FIX = 'fix: --input 3,-4,0 or --input "[[1, 2, 3], [4, 5, 6]]" or --input FILE.npy'


def read_tensor(text: str) -> Tensor:
    """Parse a command-line value: numbers, or the path of a .npy file.

    >>> read_tensor("3,-4,0")
    tensor([ 3., -4.,  0.])
    >>> read_tensor("[[1, 2], [3, 4.5]]").shape
    torch.Size([2, 2])
    """
    if _is_file(text):
        return as_tensor(_read_file(Path(text)))
    if not text.strip():
        raise ConfigError(f"the input is empty\n{FIX}")
    if re.search(r"\b(nan|inf(inity)?)\b", text, re.IGNORECASE):
        raise ConfigError(f"{_short(text)} contains NaN or infinity\n{FIX}")
    try:
        value = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise ConfigError(f"{_short(text)} is neither numbers nor a .npy file\n{FIX}") from None
    return as_tensor([value] if isinstance(value, int | float | complex) else value)


def _is_file(text: str) -> bool:
    try:
        return text.lower().endswith((".npy", ".npz")) or Path(text).is_file()
    except (OSError, ValueError):  # too long for a path, or invalid characters
        return False


def as_tensor(value: Any) -> Tensor:
    """Convert a tensor, an array or nested lists to a float32 tensor of finite values.

    >>> as_tensor([[1, 2], [3]])
    Traceback (most recent call last):
    normscope.errors.ShapeError: ragged nested lists: one part is of shape (2,), another of shape (1,)
    fix: give all lists of a level the same length
    """
    array = _array(value)
    if array.dtype.kind not in "iuf":
        raise DtypeError(f"expected real numbers, but got an array of {array.dtype}\n{FIX}")
    if array.size == 0:
        raise ShapeError(f"got an empty tensor of shape {array.shape}\n{FIX}")
    if not np.isfinite(array).all():
        raise ConfigError("the values contain NaN or infinity\nfix: replace them by finite numbers")
    with np.errstate(over="ignore"):
        narrow = array.astype(np.float32)
    if not np.isfinite(narrow).all():
        raise ConfigError(TOO_LARGE)
    return torch.from_numpy(narrow)


def _array(value: Any) -> NDArray[Any]:
    if isinstance(value, Tensor):
        try:
            value = value.detach().cpu()
            return np.asarray(value.double() if value.is_floating_point() else value)  # numpy has no bfloat16
        except (TypeError, RuntimeError) as error:  # sparse, nested, quantized, or without numbers
            raise DtypeError(
                f"expected a dense tensor of real numbers, but got one that numpy cannot convert: {error}\n{FIX}"
            ) from error
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value)
    if len(_shape(value)) > MAX_DIMENSIONS:
        raise ShapeError(f"the lists are nested more than {MAX_DIMENSIONS} levels deep\n{FIX}")
    try:
        return np.asarray(value, dtype=np.float64)
    except OverflowError:  # an integer with hundreds of digits
        raise ConfigError(TOO_LARGE) from None


def _shape(value: Any) -> tuple[int, ...]:
    """Return the shape of nested lists of numbers; raise if they are ragged."""
    if isinstance(value, bool) or not isinstance(value, int | float | list | tuple):
        raise ArgumentTypeError(f"expected real numbers, but got {_short(repr(value))}\n{FIX}")
    if isinstance(value, int | float):
        return ()
    shapes = [_shape(part) for part in value]
    for shape in shapes[1:]:
        if shape != shapes[0]:
            raise ShapeError(
                f"ragged nested lists: one part is {_entries(shapes[0])}, another {_entries(shape)}"
                f"\nfix: give all lists of a level the same length"
            )
    return len(shapes), *(shapes[0] if shapes else ())


def _entries(shape: tuple[int, ...]) -> str:
    return f"of shape {shape}" if shape else "a single number"


def _read_file(path: Path) -> NDArray[Any]:
    try:
        with path.open("rb") as file:
            # Not np.load: this reads plain arrays only, and rejects pickled objects, which could run code.
            return np.asarray(np.lib.format.read_array(file, allow_pickle=False))
    except FileNotFoundError:
        raise FileError(f"there is no file {path}\n{FIX}") from None
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror or error}\nfix: name a .npy file") from None
    except (ValueError, EOFError, MemoryError, OverflowError) as error:
        objects = "Object arrays" in str(error)
        why = "it contains Python objects, not numbers" if objects else "it is not a complete .npy file"
        raise ConfigError(
            f"cannot read {path}: {why}\nfix: write it with numpy.save(path, array), from an array of floats"
        ) from None


def _short(text: str, longest: int = 50) -> str:
    """Return the repr, truncated if the text is long."""
    return repr(text if len(text) <= longest else f"{text[:longest]}...")


def needs_rank(layer: str, least: int, most: int = 99, example: str = "") -> Callable[[Tensor], Tensor]:
    """Return a check of tensors with a valid number of dimensions."""
    dimensions = f"{least} dimensions" if least == most else f"{least} or more dimensions"
    example = example or ("[" * least + "1, 2" + "]" * least)

    def check(x: Tensor) -> Tensor:
        if not least <= x.dim() <= most:
            raise ShapeError(
                f"{layer} expects a tensor of {dimensions}, but got {x.dim()}: shape {tuple(x.shape)}"
                f'\nfix: pass --input "{example}", or a .npy file with {dimensions}'
            )
        return x

    return check


def needs_sequences(layer: str) -> Callable[[Tensor], Tensor]:
    """Return a check of batches of sequences, (b, s, d); a single sequence, (s, d), becomes a batch of one."""
    check = needs_rank(layer, 3, most=3, example="[[[1, 0], [0, 1], [1, 1]]]")
    return lambda x: check(x.unsqueeze(0) if x.dim() == 2 else x)


def format_number(number: float) -> str:
    """Format a number of the input in full; beyond the precision of float32, as approximate.

    >>> format_number(1.5), format_number(1e6), format_number(1e8)
    ('1.5', '1000000', 'about 100000000')
    """
    if not number.is_integer():
        return f"{number:g}"
    return f"{'about ' if abs(number) > 2**24 else ''}{number:.0f}"


TEXT_AXES = {1: ("d",), 2: ("s", "d"), 3: ("b", "s", "d")}
IMAGE_AXES = {2: ("n", "c"), 3: ("n", "c", "w"), 4: ("n", "c", "h", "w")}
"""Names of the dimensions of text and images, by their number."""


def check_divisor(name: str, what: str, size: int, default: int, value: int | None) -> int:
    """Return the value of an option that must divide a size."""
    if value is None:
        return default
    if not is_integer(value) or size % value:
        divisors = ", ".join(str(divisor) for divisor in range(1, size + 1) if size % divisor == 0)
        raise ConfigError(f"{what} not divisible by {name}={value!r}\nfix: --{name} with one of {divisors}")
    return value


def resolve_heads(width: int, heads: int | None) -> int:
    """Return the number of heads; by default two, or one if the width is odd."""
    return check_divisor("heads", f"the width {width} is", width, 1 if width % 2 else 2, heads)


def check_eps(eps: float) -> None:
    if not (is_number(eps) and 0 <= eps < math.inf):
        raise ConfigError(f"eps={eps!r} must be a number >= 0\nfix: --eps 1e-5")
