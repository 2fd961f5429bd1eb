"""Tensors of a file by name, read one at a time."""

from collections.abc import Callable, Iterator, Mapping
from typing import Self

from torch import Tensor

from normscope.storage.tensor_spec import TensorSpec


def tensor_specs(tensors: Mapping[str, Tensor]) -> dict[str, TensorSpec]:
    """Shape and dtype of each tensor, without reading any; the tensors may be on the meta device."""
    if isinstance(tensors, LazyTensors):
        return dict(tensors.specs)
    return {name: TensorSpec.of(tensor) for name, tensor in tensors.items()}


class LazyTensors(Mapping[str, Tensor]):
    """Tensors that are read when they are looked up.

    Nothing is kept: looking up a name twice reads it twice. Look up one at a time to load a model in its own size.

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

    def copies(self) -> "LazyTensors":
        """Copies, for tensors that share memory which a model must not keep, such as that of a mapped file."""
        return LazyTensors(self.specs, lambda name: self[name].clone())

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
