"""What is known of tensors that are still alive: so that none is measured twice, and that it is known who made it."""

import weakref
from dataclasses import dataclass, field

import torch
from torch import Tensor

from normscope.diagnostics.collect.tensors import is_measurable
from normscope.ops.moments import Moments, compute_moments

_SOME = 4  # numbers along each axis


@dataclass
class JoinLocation:
    """Which addition made a tensor: the number of it in the module's call, and the module."""

    module: str
    index: int


@dataclass
class TensorEntry:
    """A tensor that was seen.

    Args:
        born: the place in time at which it was first seen.
        moments: of its numbers; None if nobody asked yet.
        makers: the modules (or functions) that made it, the innermost first.
        behind: if it is what some made times a factor, or with some of it dropped: those.
        readers: the modules that were given it.
        channels: the axis of its units or channels.
        join: the addition that made it.
        normed: the addition whose sum was normalized to make it, and the norm.
        unsure: whether it may be changed in a way that torch does not count: it is measured each time.
    """

    created_at: int
    moments: Moments | None = None
    producers: list[str] = field(default_factory=list)
    scaled_from: list[str] = field(default_factory=list)
    consumers: list[str] = field(default_factory=list)
    channels: int = -1
    join: JoinLocation | None = None
    normalized_join: tuple[JoinLocation, str] | None = None
    needs_remeasure: bool = False

    @property
    def place(self) -> str:
        """Who made it: a module, a function, or an addition; "" if that is not known."""
        if self.producers or self.scaled_from:
            return (self.producers or self.scaled_from)[0]
        return "" if self.join is None else f"{self.join.module}.add()".lstrip(".")


class TensorRegistry:
    """The tensors seen in this pass, by identity; they are not kept alive by it."""

    def __init__(self) -> None:
        self._seen: dict[
            int, tuple[weakref.ref[Tensor], int, TensorEntry]
        ] = {}  # with how often it was changed in place
        self._clock = 0

    def of(self, tensor: Tensor) -> TensorEntry:
        """What is known of a tensor; a new entry if it was never seen, or has been changed in place since."""
        entry = self._seen.get(id(tensor))
        if entry is not None and entry[0]() is tensor and entry[1] == version_of(tensor):
            return entry[2]
        return self.renew(tensor)

    def renew(self, tensor: Tensor) -> TensorEntry:
        """Forget what was known of it: it is new."""
        self._clock += 1
        entry = TensorEntry(self._clock, channels=1 if tensor.dim() >= 4 else -1, needs_remeasure=tensor.is_inference())
        self.share(tensor, entry)
        return entry

    def share(self, tensor: Tensor, entry: TensorEntry) -> None:
        """Let a tensor have another's entry: it is the same numbers, seen from another side."""
        key = id(tensor)
        seen = self._seen
        seen[key] = (weakref.ref(tensor, lambda _: seen.pop(key, None)), version_of(tensor), entry)

    def moments(self, tensor: Tensor) -> Moments:
        entry = self.of(tensor)
        if entry.moments is None or entry.needs_remeasure:
            entry.moments = compute_moments(tensor)
        return entry.moments

    def clear(self) -> None:
        self._seen.clear()


def version_of(tensor: Tensor) -> int:
    """How often it was changed in place. For tensors made in inference mode torch does not count: some of their numbers
    stand for it, in which a change of all of them shows."""
    if not tensor.is_inference():
        return tensor._version
    if not tensor.numel() or not is_measurable(tensor):
        return 0
    some = tensor[tuple(slice(None, None, -(-size // _SOME)) for size in tensor.shape)]
    return hash(some.double().cpu().numpy().tobytes())


def in_backward() -> bool:
    """Whether autograd is on its way back: a module that is called then is computed once more for a checkpoint."""
    return torch._C._current_graph_task_id() != -1
