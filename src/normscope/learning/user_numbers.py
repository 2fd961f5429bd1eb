"""The user's own numbers: from a .npy file, from a text such as "[[1, 2], [3, 4]]", or from Python."""

import ast
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from normscope.errors import ConfigError, DtypeError, FileError, ShapeError

MOST_DIMENSIONS = 8
TOO_LARGE = "a number is too large for float32, which ends at 3.4e38\nfix: give smaller numbers"
FIX = 'fix: --input 3,-4,0 or --input "[[1, 2, 3], [4, 5, 6]]" or --input FILE.npy'


def read_tensor(text: str) -> Tensor:
    """The tensor that an option of the command line means: numbers, or the name of a .npy file.

    >>> read_tensor("3,-4,0")
    tensor([ 3., -4.,  0.])
    >>> read_tensor("[[1, 2], [3, 4.5]]").shape
    torch.Size([2, 2])
    """
    if _names_a_file(text):
        return as_tensor(_read_file(Path(text)))
    if not text.strip():
        raise ConfigError(f"the input is empty\n{FIX}")
    if re.search(r"\b(nan|inf(inity)?)\b", text, re.IGNORECASE):
        raise ConfigError(f"not every number of {_short(text)} is finite\n{FIX}")
    try:
        value = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise ConfigError(f"{_short(text)} is neither numbers nor the name of a .npy file\n{FIX}") from None
    return as_tensor([value] if isinstance(value, int | float | complex) else value)


def _names_a_file(text: str) -> bool:
    try:
        return text.lower().endswith((".npy", ".npz")) or Path(text).is_file()
    except (OSError, ValueError):  # longer than a name can be, or with characters that none has
        return False


def as_tensor(value: Any) -> Tensor:
    """Numbers of any kind (a tensor, an array, nested lists) as a tensor of float32; what is not finite is refused.

    >>> as_tensor([[1, 2], [3]])
    Traceback (most recent call last):
    normscope.errors.ShapeError: the lists are ragged: one part is of shape (2,), another of shape (1,)
    fix: give all the lists of one depth the same number of entries
    """
    array = _array(value)
    if array.dtype.kind not in "iuf":
        raise DtypeError(f"an example is made of real numbers, but got an array of {array.dtype}\n{FIX}")
    if array.size == 0:
        raise ShapeError(f"there are no numbers in a tensor of shape {array.shape}\n{FIX}")
    if not np.isfinite(array).all():
        raise ConfigError("not every number is finite\nfix: replace NaN and infinity by numbers")
    with np.errstate(over="ignore"):
        narrow = array.astype(np.float32)
    if not np.isfinite(narrow).all():
        raise ConfigError(TOO_LARGE)
    return torch.from_numpy(narrow)


def _array(value: Any) -> NDArray[Any]:
    if isinstance(value, Tensor):
        try:
            value = value.detach().cpu()
            return np.asarray(value.double() if value.is_floating_point() else value)  # numpy knows no bfloat16
        except (TypeError, RuntimeError) as error:  # sparse, nested, quantized, or without numbers
            raise DtypeError(
                f"an example is a dense tensor of real numbers, but got one that numpy cannot hold: {error}\n{FIX}"
            ) from error
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value)
    if len(_shape(value)) > MOST_DIMENSIONS:
        raise ShapeError(f"the lists are nested more than {MOST_DIMENSIONS} deep\n{FIX}")
    try:
        return np.asarray(value, dtype=np.float64)
    except OverflowError:  # a whole number of hundreds of digits
        raise ConfigError(TOO_LARGE) from None


def _shape(value: Any) -> tuple[int, ...]:
    """The shape of nested lists, if they have one and hold nothing but numbers."""
    if isinstance(value, bool) or not isinstance(value, int | float | list | tuple):
        raise DtypeError(f"an example is made of real numbers, but got {_short(repr(value))}\n{FIX}")
    if isinstance(value, int | float):
        return ()
    shapes = [_shape(part) for part in value]
    for shape in shapes[1:]:
        if shape != shapes[0]:
            raise ShapeError(
                f"the lists are ragged: one part is {_entries(shapes[0])}, another {_entries(shape)}"
                f"\nfix: give all the lists of one depth the same number of entries"
            )
    return len(shapes), *(shapes[0] if shapes else ())


def _entries(shape: tuple[int, ...]) -> str:
    return f"of shape {shape}" if shape else "a single number"


def _read_file(path: Path) -> NDArray[Any]:
    try:
        with path.open("rb") as file:
            # Not np.load: this reads arrays and nothing else, and objects, which would be code to run, are refused.
            return np.asarray(np.lib.format.read_array(file, allow_pickle=False))
    except FileNotFoundError:
        raise FileError(f"there is no file {path}\n{FIX}") from None
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror or error}\nfix: name a .npy file") from None
    except (ValueError, EOFError, MemoryError, OverflowError) as error:
        objects = "Object arrays" in str(error)
        why = "it holds Python objects, not numbers" if objects else "it is not a whole .npy file"
        raise ConfigError(
            f"cannot read {path}: {why}\nfix: write it with numpy.save(path, array), from an array of floats"
        ) from None


def _short(text: str, longest: int = 50) -> str:
    """A text in quotes, on one line, without the end if it is long."""
    return repr(text if len(text) <= longest else f"{text[:longest]}...")
