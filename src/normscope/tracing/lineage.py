"""Follow tensors through a running model: what each one was computed from, by torch function."""

from collections.abc import Iterable, Sequence

from torch import Tensor

from normscope.tracing.function_kinds import Role
from normscope.tracing.tensor_table import TensorTable, tensor_version

_MAX_OPS = 1 << 14
"""Older ops are forgotten, so that a long run does not fill the memory."""


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
