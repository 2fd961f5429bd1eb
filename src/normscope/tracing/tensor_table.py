"""Weakly keyed tables of live tensors, for example of the tensors that each was computed from."""

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

from torch import Tensor

from normscope.tracing.function_kinds import Role

_MAX_OPS = 1 << 14
"""Older ops are forgotten, so that a long run does not fill the memory."""

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


class TensorLineage:
    """The dataflow between tensors that are alive, as integer ids. It does not keep tensors alive.

    >>> import torch
    >>> lineage = TensorLineage()
    >>> x = torch.ones(2)
    >>> y = x + 1
    >>> lineage.record([lineage.id_of(x)], [y], "other")
    >>> lineage.inputs_of(lineage.id_of(y)) == [lineage.id_of(x)]
    True
    """

    def __init__(self) -> None:
        self._ids = TensorTable[int](tensor_version)
        self._ops: dict[int, tuple[list[int], Role]] = {}
        self._last_id = 0

    def id_of(self, tensor: Tensor) -> int:
        """Return the id of a tensor. A tensor that was changed in place has a new id."""
        known = self._ids.get(tensor)
        return self._new_id(tensor) if known is None else known

    def is_known(self, tensor: Tensor) -> bool:
        return self._ids.get(tensor) is not None

    def record(self, inputs: Iterable[int], outputs: Iterable[Tensor], role: Role) -> None:
        """Record that a function computed the outputs from the inputs."""
        op = (list(inputs), role)
        for tensor in outputs:
            self._ops[self._new_id(tensor)] = op
        while len(self._ops) > _MAX_OPS:
            del self._ops[next(iter(self._ops))]

    def alias(self, tensor: Tensor, tensor_id: int) -> None:
        """Give a tensor the id of another one with the same values."""
        self._ids.put(tensor, tensor_id)

    def inputs_of(self, tensor: int) -> Sequence[int]:
        """Return the ids of the tensors that a tensor was computed from; empty if unknown."""
        return self._ops[tensor][0] if tensor in self._ops else []

    def role_of(self, tensor: int) -> Role:
        """Return what computed a tensor."""
        return self._ops[tensor][1] if tensor in self._ops else "other"

    def clear(self) -> None:
        self._ids.clear()
        self._ops.clear()

    def _new_id(self, tensor: Tensor) -> int:
        self._last_id += 1
        return self._ids.put(tensor, self._last_id)
