"""What is known of tensors that are still alive: so that none is measured twice, and that it is known who made it."""

import weakref
from dataclasses import dataclass, field

import torch
from torch import Tensor

from normscope.kernels.moments import Moments, moments_of


@dataclass
class JoinPlace:
    """Which addition made a tensor: the number of it in the module's call, and the module."""

    module: str
    index: int


@dataclass
class Sighting:
    """A tensor that was seen.

    Args:
        born: the place in time at which it was first seen.
        version: how often it had been changed in place.
        moments: of its numbers; None if nobody asked yet.
        makers: the modules (or functions) that made it, the innermost first.
        readers: the modules that were given it.
        channels: the axis of its units or channels.
        join: the addition that made it.
        normed: the addition whose sum was normalized to make it, and the norm.
    """

    born: int
    version: int
    moments: Moments | None = None
    makers: list[str] = field(default_factory=list)
    readers: list[str] = field(default_factory=list)
    channels: int = -1
    join: JoinPlace | None = None
    normed: tuple[JoinPlace, str] | None = None


class Sightings:
    """The tensors seen in this pass, by identity; they are not kept alive by it."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[weakref.ref[Tensor], Sighting]] = {}
        self._clock = 0

    def of(self, tensor: Tensor) -> Sighting:
        """What is known of a tensor; a new entry if it was never seen, or has been changed in place since."""
        entry = self._seen.get(id(tensor))
        version = version_of(tensor)
        if entry is not None and entry[0]() is tensor and entry[1].version == version:
            return entry[1]
        return self.renew(tensor)

    def renew(self, tensor: Tensor) -> Sighting:
        """Forget what was known of it: it is new."""
        self._clock += 1
        sighting = Sighting(self._clock, version_of(tensor), channels=1 if tensor.dim() >= 4 else -1)
        self.share(tensor, sighting)
        return sighting

    def share(self, tensor: Tensor, sighting: Sighting) -> None:
        """Let a tensor have another's entry: it is the same numbers, seen from another side."""
        key = id(tensor)
        seen = self._seen
        seen[key] = (weakref.ref(tensor, lambda _: seen.pop(key, None)), sighting)

    def moments(self, tensor: Tensor) -> Moments:
        sighting = self.of(tensor)
        if sighting.moments is None:
            sighting.moments = moments_of(tensor)
        return sighting.moments

    def clear(self) -> None:
        self._seen.clear()


def version_of(tensor: Tensor) -> int:
    """How often it was changed in place; torch does not count for tensors made in inference mode."""
    return 0 if tensor.is_inference() else tensor._version


def in_backward() -> bool:
    """Whether autograd is on its way back: a module that is called then is computed once more for a checkpoint."""
    return torch._C._current_graph_task_id() != -1
