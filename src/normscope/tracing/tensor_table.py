"""Remember something about each tensor that is alive, without keeping the tensor alive."""

import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

from torch import Tensor

Value = TypeVar("Value")


def tensor_version(tensor: Tensor) -> int:
    """A number that changes when a tensor changes in place; 0 for inference tensors, which have none."""
    return 0 if tensor.is_inference() else tensor._version


class TensorTable(Generic[Value]):
    """Values by tensor, compared by identity. A tensor leaves the table when it is freed.

    >>> import torch
    >>> table = TensorTable[str](tensor_version)
    >>> x = torch.ones(2)
    >>> table.put(x, "ones")
    'ones'
    >>> table.get(x), table.get(x.add_(1))
    ('ones', None)

    Args:
        version: a number that changes when a tensor changes in place. A value is forgotten when it does.
    """

    def __init__(self, version: Callable[[Tensor], int] = lambda _: 0) -> None:
        self._version = version
        self._entries: dict[int, tuple[weakref.ref[Tensor], int, Value]] = {}

    def get(self, tensor: Tensor) -> Value | None:
        entry = self._entries.get(id(tensor))
        if entry is None or entry[0]() is not tensor or entry[1] != self._version(tensor):
            return None
        return entry[2]

    def put(self, tensor: Tensor, value: Value) -> Value:
        key, entries = id(tensor), self._entries
        entries[key] = (weakref.ref(tensor, lambda _: entries.pop(key, None)), self._version(tensor), value)
        return value

    def __len__(self) -> int:
        return len(self._entries)

    def clear(self) -> None:
        self._entries.clear()
