"""Find tensors in nested inputs and outputs: tuples, lists, dicts and dataclasses."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

_MAX_DEPTH = 8


def tensors_in(value: Any, max_depth: int = _MAX_DEPTH) -> Iterator[Tensor]:
    """Yield every tensor in a nested structure, in a fixed order. A tensor that occurs twice is yielded twice.

    >>> import torch
    >>> [tuple(t.shape) for t in tensors_in({"a": torch.zeros(2), "b": (torch.zeros(3), None, [torch.zeros(4)])})]
    [(2,), (3,), (4,)]
    """
    if isinstance(value, Tensor):
        yield value
    elif max_depth:
        for item in _items(value):
            yield from tensors_in(item, max_depth - 1)


def outermost_tensors(value: Any, max_depth: int = _MAX_DEPTH) -> list[Tensor]:
    """Return the tensors at the shallowest level that has any. Caches and lists of states lie deeper.

    >>> import torch
    >>> [tuple(t.shape) for t in outermost_tensors({"logits": torch.zeros(2), "cache": [torch.zeros(3)]})]
    [(2,)]
    """
    level = [value]
    for _ in range(max_depth):
        tensors = [item for item in level if isinstance(item, Tensor)]
        if tensors:
            return tensors
        level = [item for container in level for item in _items(container)]
    return []


def _items(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        yield from value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        yield from value
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from (getattr(value, field.name, None) for field in dataclasses.fields(value))
