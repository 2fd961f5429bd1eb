"""A call of the model that is kept for experiments: copies of its arguments and targets."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from normscope.diagnostics.collect.tensors import is_readable
from normscope.tracing.experiments import copy_input
from normscope.tracing.nested_tensors import tensors_in

MAX_ELEMENTS = 1 << 21
"""Elements of the arguments; of larger ones only the first samples are kept, if all have a batch axis."""

_FEW_SAMPLES = 8


@dataclass
class KeptCall:
    """A call of a model: copies of its arguments, and of the targets of the losses after it."""

    module: nn.Module
    args: Any
    kwargs: Any
    count: int
    """The size of the first axis of the first argument, of which perhaps fewer are kept."""
    targets: list[tuple[Tensor, int | None, bool]] = field(default_factory=list)
    """Targets, the ignored index, and whether all of them are known to count: the loss is reduced in the call."""
    is_open: bool = True
    batches: set[float] = field(default_factory=set)

    @property
    def tensors(self) -> list[Tensor]:
        return list(tensors_in((self.args, self.kwargs)))


def copy_call(module: nn.Module, args: Any, kwargs: Any) -> KeptCall | None:
    tensors = list(tensors_in((args, kwargs)))
    if not tensors or not all(t.dtype == torch.bool or is_readable(t) for t in tensors):
        return None
    count = len(tensors[0]) if tensors[0].dim() else 1
    is_large = sum(tensor.numel() for tensor in tensors) > MAX_ELEMENTS
    if is_large and not _have_samples(tensors):
        return None
    try:
        args, kwargs = copy_input((args, kwargs), lambda x: x[:_FEW_SAMPLES] if is_large else x)
    except TypeError:
        return None
    return KeptCall(module, args, kwargs, count)


def _have_samples(tensors: Sequence[Tensor]) -> bool:
    return all(tensor.dim() and len(tensor) == len(tensors[0]) for tensor in tensors)


def with_few_samples(called: KeptCall) -> KeptCall:
    """Keep the first samples, and another number than there are tokens, to tell the two axes apart."""
    tensors = called.tensors
    if not _have_samples(tensors) or tensors[0].dim() < 2:
        return called
    count = min(len(tensors[0]), _FEW_SAMPLES)
    if tensors[0].shape[1] == count > 3:
        count -= 1
    args, kwargs = copy_input((called.args, called.kwargs), lambda x: x[:count])
    return replace(called, args=args, kwargs=kwargs)


def only_input(called: KeptCall) -> Tensor | None:
    """The input of a call with one; masks, and integers such as positions beside it, are allowed."""
    tensors = [tensor for tensor in called.tensors if tensor.dim()]
    if not tensors or tensors[0].dim() < 2 or tensors[0].dtype == torch.bool:
        return None
    x, *others = tensors
    allowed = all(
        len(o) == len(x) and not o.is_floating_point() and o.shape[1:] in (x.shape[1:], x.shape[1:2]) for o in others
    )
    return x if allowed else None
