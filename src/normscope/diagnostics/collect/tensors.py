"""The tensors inside whatever a module takes and gives: tuples, lists, dicts, dataclasses, and these in each other."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensor
from torch.nn.parameter import is_lazy

_DEEPEST = 8


def tensors_in(value: Any, deepest: int = _DEEPEST) -> Iterator[Tensor]:
    """Every tensor there is, in a fixed order; each once for each place it stands at.

    >>> [tuple(t.shape) for t in tensors_in({"a": torch.zeros(2), "b": (torch.zeros(3), None, [torch.zeros(4)])})]
    [(2,), (3,), (4,)]
    """
    if isinstance(value, Tensor):
        yield value
    elif deepest == 0 or isinstance(value, str | bytes | int | float):
        return
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item, deepest - 1)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from tensors_in(item, deepest - 1)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from tensors_in(getattr(value, field.name, None), deepest - 1)


def is_measurable(tensor: Tensor) -> bool:
    """Whether it holds real numbers that can be read: not whole numbers, complex ones, or a stand-in without memory."""
    return (
        tensor.is_floating_point()
        and not tensor.is_nested
        and tensor.layout == torch.strided
        and not tensor.is_meta
        and not is_lazy(tensor)
        and not isinstance(tensor, FakeTensor)
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )


def is_readable(tensor: Tensor) -> bool:
    """The same, but whole numbers count too."""
    whole = tensor.dtype in (torch.int64, torch.int32) and not tensor.is_nested and tensor.layout == torch.strided
    return is_measurable(tensor) or (whole and not tensor.is_meta and not isinstance(tensor, FakeTensor))


def shape_of(tensor: Tensor) -> tuple[int, ...]:
    """Its shape; of a nested one, in which each row has another, how many rows there are."""
    return (int(tensor.size(0)),) if tensor.is_nested else tuple(tensor.shape)


def is_only_masked(tensor: Tensor) -> bool:
    """Whether all that is not finite in it is minus infinity, which stands for "not to be seen" in masks."""
    tensor = tensor.detach().float()
    return not bool((torch.isnan(tensor) | torch.isposinf(tensor)).any())
