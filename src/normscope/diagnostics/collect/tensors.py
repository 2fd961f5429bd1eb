"""Which tensors can be measured, and the recorded state of live tensors: statistics, producers and consumers."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeGuard, TypeVar

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor
from torch.nn.parameter import is_lazy

from normscope.ops.moments import Moments, compute_moments
from normscope.tracing.sharded import is_dtensor, local_part
from normscope.tracing.tensor_table import TensorTable

_SAMPLES = 4  # along each axis
_PLAIN = (Tensor, nn.Parameter)

Item = TypeVar("Item")


def is_measurable(value: object) -> TypeGuard[Tensor]:
    """Whether a value is a tensor of floating-point values that can be read.

    Integers are not measured; meta and fake tensors have no values, and those of a DTensor are on other ranks.
    """
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return False
    if value.is_nested or value.layout != torch.strided or value.is_meta:
        return False
    if type(value) not in _PLAIN and (is_lazy(value) or isinstance(value, FakeTensor) or is_dtensor(value)):
        return False
    return not torch._C._functorch.is_functorch_wrapped_tensor(value)


def is_readable(tensor: Tensor) -> bool:
    """Like `is_measurable`, but also true for integers."""
    is_integer = tensor.dtype in (torch.int64, torch.int32) and not tensor.is_nested and tensor.layout == torch.strided
    is_real = not (tensor.is_meta or is_dtensor(tensor) or isinstance(tensor, FakeTensor))
    return is_measurable(tensor) or (is_integer and is_real)


def shape_of(tensor: Tensor) -> tuple[int, ...]:
    """Return the shape; of a nested tensor, whose rows differ in shape, the number of rows."""
    return (int(tensor.size(0)),) if tensor.is_nested else tuple(tensor.shape)


def sample_elements(tensor: Tensor, count: int) -> Tensor:
    """Return about `count` elements, always the same ones. They share the tensor's memory."""
    flat = tensor.detach().reshape(-1)
    return flat[:: max(1, -(-flat.numel() // count))]


def copy_elements(tensor: Tensor, count: int) -> Tensor:
    """Return a copy of about `count` elements, of a DTensor those of this rank, to compare them later."""
    return sample_elements(local_part(tensor), count).clone()


def sample_items(items: Sequence[Item], count: int) -> list[Item]:
    """Return at most `count` items, spread over all."""
    return list(items[:: max(1, -(-len(items) // count))])


def is_only_masked(tensor: Tensor) -> bool:
    """Whether all non-finite values are minus infinity, as in attention masks."""
    tensor = tensor.detach().float()
    return not bool((torch.isnan(tensor) | torch.isposinf(tensor)).any())


@dataclass
class JoinLocation:
    """The residual addition that made a tensor: the module, and the index of the addition in the module's call."""

    module: str
    index: int


@dataclass
class TrackedTensor:
    """What is known about a tensor.

    Args:
        created_at: the logical time at which the tensor was first seen.
        moments: the statistics of its values; None if not measured yet.
        producers: the modules or functions that produced it, the innermost first.
        scaled_from: the producers of the tensor that was scaled, or had values dropped, to make this one.
        consumers: the modules that took it as an input.
        channels: the axis of its units or channels.
        join: the residual addition that made it.
        normalized_join: the residual addition whose sum was normalized to make it, and the name of the norm.
        needs_remeasure: whether it may change without a new version, so that it is measured on every use.
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
    def origin(self) -> str:
        """The module, function or addition that produced the tensor; "" if unknown."""
        if self.producers or self.scaled_from:
            return (self.producers or self.scaled_from)[0]
        return "" if self.join is None else f"{self.join.module}.add()".lstrip(".")


class TensorRegistry:
    """Entries of live tensors. A tensor that was changed in place gets a new entry."""

    def __init__(self) -> None:
        self._entries = TensorTable[TrackedTensor](version_of)
        self._clock = 0

    def of(self, tensor: Tensor) -> TrackedTensor:
        """Return the entry of a tensor: a new one if the tensor is new or was changed in place."""
        return self._entries.get(tensor) or self.renew(tensor)

    def renew(self, tensor: Tensor) -> TrackedTensor:
        """Replace the entry of a tensor by a new one."""
        self._clock += 1
        channels = 1 if tensor.dim() >= 4 else -1
        return self.share(tensor, TrackedTensor(self._clock, channels=channels, needs_remeasure=tensor.is_inference()))

    def share(self, tensor: Tensor, entry: TrackedTensor) -> TrackedTensor:
        """Let a tensor share the entry of another one with the same values."""
        return self._entries.put(tensor, entry)

    def moments(self, tensor: Tensor) -> Moments:
        entry = self.of(tensor)
        if entry.moments is None or entry.needs_remeasure:
            entry.moments = compute_moments(tensor)
        return entry.moments

    def clear(self) -> None:
        self._entries.clear()


def version_of(tensor: Tensor) -> int:
    """Return the version counter of a tensor. Inference tensors have none: a hash of some of their values serves."""
    if not tensor.is_inference():
        return tensor._version
    if not tensor.numel() or not is_measurable(tensor):
        return 0
    sample = tensor[tuple(slice(None, None, -(-size // _SAMPLES)) for size in tensor.shape)]
    return hash(sample.double().cpu().numpy().tobytes())


def in_backward() -> bool:
    """Whether autograd runs backward. A module called then is recomputed for a checkpoint."""
    return torch._C._current_graph_task_id() != -1
