"""Tensors of a file by name, read one at a time."""

from collections.abc import Callable, Iterator, Mapping
from typing import Self

from torch import Tensor

from normscope.storage.tensor_spec import TensorSpec


class LazyTensors(Mapping[str, Tensor]):
    """Tensors that are read when they are looked up.

    Nothing is kept: looking up a name twice reads it twice. The tensors of a memory-mapped file share its pages, which
    leave the memory when the last of these tensors is gone: copy one at a time to load a model in its own size.

    Args:
        specs: shape and dtype of each tensor.
        read: reads a tensor by its name.
    """

    def __init__(self, specs: Mapping[str, TensorSpec], read: Callable[[str], Tensor]) -> None:
        self.specs = specs
        self._read = read

    @classmethod
    def merge(cls, parts: Mapping[str, Self]) -> Self:
        """One mapping of several; `parts` says for each name which one has it."""
        return cls({name: part.specs[name] for name, part in parts.items()}, lambda name: parts[name][name])

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.specs:
            raise KeyError(name)
        return self._read(name)

    def __contains__(self, name: object) -> bool:  # that of Mapping would read the tensor
        return name in self.specs

    def __iter__(self) -> Iterator[str]:
        return iter(self.specs)

    def __len__(self) -> int:
        return len(self.specs)
