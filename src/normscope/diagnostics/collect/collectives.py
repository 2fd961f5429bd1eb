"""Keep the x-ray from communicating: a rank without an x-ray would not take part, and both would wait forever."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from normscope.tracing.sharded import dtensor_classes

_NAMESPACES = {"c10d", "_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "_dtensor"}


class CollectiveError(RuntimeError):
    """A part of the x-ray would have communicated with other ranks."""


class NoCollectives(TorchDispatchMode):
    """Raise instead of communicating, also in the arithmetic of DTensor and in modules that the x-ray tries out."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.namespace in _NAMESPACES:
            raise CollectiveError(f"it needs {func.__name__}, and other ranks may not take an x-ray now")
        if any(issubclass(kind, dtensor_classes()) for kind in types):
            return NotImplemented  # a DTensor is taken apart first, and its operations arrive here
        return func(*args, **kwargs or {})


def no_collectives() -> AbstractContextManager[Any]:
    """Return a context that refuses collectives; in a process without other ranks, one that does nothing."""
    return NoCollectives() if has_other_ranks() else nullcontext()


def has_other_ranks() -> bool:
    """Whether this process is one of several ranks of torch.distributed."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
