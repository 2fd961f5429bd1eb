"""What a pickle may name without tensors: containers, bytes and numpy numbers."""

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import numpy as np

from normscope.storage.json_files import ContentError

Keys = TypeVar("Keys", bound=Iterable[Any])
MAX_KEY = 2**32
MAX_TUPLE = 16
"""Limit of the strings in a tuple that is a key: it is hashed each time that it is one."""
_NUMPY_DTYPES = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")


def checked_keys(keys: Keys) -> Keys:
    """Keys of a dict or set; raises unless they are strings, bytes, small integers or tuples of strings.

    The hashes of other values can be chosen to be all the same, and a dict of them would take hours to build.
    """
    for key in keys:
        kind = type(key)
        if kind is int and abs(key) > MAX_KEY:
            raise ContentError("uses an integer of more than 32 bits as a key")
        if kind not in (str, bytes, int, bool, type(None)) and not (
            kind is tuple and all(type(part) in (str, bytes) for part in key)
        ):
            raise ContentError(f"uses a {kind.__name__} as a key")
        if kind is tuple and len(key) > MAX_TUPLE:
            raise ContentError(f"uses a tuple of {len(key):,} strings as a key")
    return keys


class _NumpyDtype:
    """The dtype of a numpy number; its byte order follows as its state."""

    def __init__(self, code: str, align: Any = False, copy: Any = True) -> None:
        if code not in _NUMPY_DTYPES:
            raise ValueError(f"unsupported numpy dtype {code!r:.40}")
        self.dtype = np.dtype(code)

    def set_state(self, state: tuple[Any, ...]) -> None:
        if state[1] == ">":
            self.dtype = self.dtype.newbyteorder(">")


def _numpy_number(dtype: _NumpyDtype, data: bytes) -> float | int | bool:
    if len(data) != dtype.dtype.itemsize:
        raise ValueError(f"a number of {len(data)} bytes")
    number: float | int | bool = np.frombuffer(data, dtype.dtype)[0].item()
    return number


def _empty_dict() -> dict[Any, Any]:
    return {}  # its items follow


def _default_dict(factory: object = None) -> dict[Any, Any]:
    return {}


def _empty_list() -> list[Any]:
    return []


def _encode(text: str, encoding: str) -> bytes:
    """Bytes, which protocol 2 stores as text."""
    if encoding != "latin1":
        raise ValueError(f"unsupported encoding {encoding!r:.40}")
    return text.encode("latin1")


PLAIN: Mapping[str, object] = {
    "_codecs.encode": _encode,
    "builtins.bytes": lambda: b"",
    "builtins.dict": _empty_dict,
    "builtins.list": _empty_list,
    "builtins.set": lambda values=(): set(checked_keys(values)),
    "builtins.frozenset": lambda values=(): frozenset(checked_keys(values)),
    "collections.OrderedDict": _empty_dict,
    "collections.defaultdict": _default_dict,
    "numpy.dtype": _NumpyDtype,
    "numpy.core.multiarray.scalar": _numpy_number,  # numpy 1
    "numpy._core.multiarray.scalar": _numpy_number,
}
