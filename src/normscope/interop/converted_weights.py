"""Weights of another tool by our names, converted one at a time."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from normscope.errors import WeightsError

_PREFIXES = re.compile(r"(?:_orig_mod\.|module\.)+")
"""What torch.compile and DistributedDataParallel put before each name."""


class Source(NamedTuple):
    """Where one of our weights comes from: a tensor of theirs, and what is done with it."""

    name: str
    convert: Callable[[Tensor], Tensor] | None = None


class ConvertedWeights(Mapping[str, Tensor]):
    """Our weights, each converted when it is looked up, in the dtype in which it is stored.

    Args:
        theirs: their tensors.
        sources: our names, and where they come from.
    """

    def __init__(self, theirs: Mapping[str, Tensor], sources: Mapping[str, Source]) -> None:
        self._theirs, self.sources = theirs, sources
        missing = sorted({source.name for source in sources.values()} - {*theirs})
        unused = sorted({*theirs} - {source.name for source in sources.values()})
        for problem, names in (("missing", missing), ("not part of this model", unused)):
            if names:
                more = f" and {len(names) - 3} more" if len(names) > 3 else ""
                raise WeightsError(
                    f"weights that are {problem}: {', '.join(names[:3])}{more}\n"
                    f"fix: use a checkpoint whose weights belong to its config, written by the original code"
                )

    def __getitem__(self, name: str) -> Tensor:
        source = self.sources[name]
        tensor = self._theirs[source.name]
        if source.convert is None:
            return tensor
        try:
            return source.convert(tensor)
        except (RuntimeError, IndexError) as error:  # a shape that does not fit
            raise WeightsError(
                f"{source.name} has the shape {tuple(tensor.shape)}, which does not fit: {error}"
            ) from None

    def __contains__(self, name: object) -> bool:
        return name in self.sources

    def __iter__(self) -> Iterator[str]:
        return iter(self.sources)

    def __len__(self) -> int:
        return len(self.sources)


def without_prefixes(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Remove what torch.compile and DistributedDataParallel put before each name.

    >>> list(without_prefixes({"_orig_mod.module.head.weight": torch.zeros(1)}))
    ['head.weight']
    """
    return {name[found.end() :] if (found := _PREFIXES.match(name)) else name: weights[name] for name in weights}


def first_rows(count: int) -> Callable[[Tensor], Tensor]:
    """Drop the rows that pad a vocabulary."""
    return lambda weight: weight[:count]


def reverse_rotation(weight: Tensor, head_dim: int) -> Tensor:
    """Convert the weight (heads * head_dim, d) of queries or keys between rotary embeddings of opposite angles.

    A rotation by -t is F R(t) F, where F flips the sign of the second half of a head: it maps (a, b) to
    (a cos t + b sin t, -a sin t + b cos t). Attention uses (F R(t) F q) . (F R(u) F k) = (R(t) F q) . (R(u) F k), so F
    goes into the weights. It changes no norm over the head, and is its own inverse, without rounding.

    >>> reverse_rotation(torch.ones(4, 1), head_dim=4).flatten().tolist()
    [1.0, 1.0, -1.0, -1.0]
    """
    signs = torch.ones(head_dim, dtype=weight.dtype, device=weight.device)
    signs[head_dim // 2 :] = -1
    return (weight.unflatten(0, (-1, head_dim)) * signs[:, None]).flatten(0, 1)
