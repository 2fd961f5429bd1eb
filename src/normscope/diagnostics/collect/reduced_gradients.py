"""Gradients that DDP or FSDP2 average over the ranks: they are final only when the whole backward pass has ended."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

import torch
from torch import Tensor

from normscope.tracing.sharded import local_part


@dataclass
class _Expected:
    parameter: Tensor
    before: Tensor | None
    """The gradient before the pass, if it was not reset."""


class ReducedGradients:
    """Report gradients after their reduction. A hook of a parameter sees that of this rank's batch alone.

    Args:
        take: gets a parameter, and the gradient that the passes since the last report have added.
    """

    def __init__(self, take: Callable[[Tensor, Tensor], None]) -> None:
        self._take = take
        self._expected: dict[int, _Expected] = {}
        self._is_synced = True
        self._is_waiting = False

    def begin_pass(self, *, synced: bool) -> None:
        """A forward pass begins. Say whether its gradients are reduced; otherwise they accumulate."""
        self._is_synced, self._is_waiting = synced, False

    def expect(self, parameter: Tensor) -> None:
        """In a backward pass: the parameter receives a gradient."""
        if id(parameter) not in self._expected:
            before = parameter.grad
            keep = before is not None and not before.is_sparse and bool(local_part(before).any())
            kept = local_part(before).clone() if before is not None and keep else None
            self._expected[id(parameter)] = _Expected(parameter, kept)
        if not self._is_waiting:
            self._is_waiting = True
            _after_backward(self._end_pass)

    def _end_pass(self) -> None:
        # The reduction ends in callbacks that were queued before this one, or after: then this one waits once more.
        _after_backward(self._end_reduction)

    def _end_reduction(self) -> None:
        self._is_waiting = False
        if self._is_synced and not _in_nested_backward():
            self.flush()

    def flush(self) -> bool:
        """Report the gradients that were expected; before an optimizer step, and at the end.

        Returns whether there were any that will not be reduced.
        """
        expected, self._expected = self._expected, {}
        for entry in expected.values():
            gradient = entry.parameter.grad
            if gradient is None:
                continue
            gradient = local_part(gradient.detach())
            if entry.before is not None and not gradient.is_sparse and gradient.shape == entry.before.shape:
                gradient = gradient - entry.before
            self._take(entry.parameter, gradient)
        return bool(expected) and not self._is_synced


def _after_backward(call: Callable[[], None]) -> None:
    torch.autograd.Variable._execution_engine.queue_callback(call)


def _in_nested_backward() -> bool:
    """Whether this is the backward pass of a reentrant checkpoint, inside that of the loss."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "backward" and frame.f_code.co_filename.endswith("checkpoint.py"):
            return True
        frame = frame.f_back
    return False
