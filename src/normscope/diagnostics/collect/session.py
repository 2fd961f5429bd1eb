"""State of a running x-ray, shared by what observes modules, functions and parameters."""

import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from normscope.diagnostics.collect.accumulators import ModuleAccumulator
from normscope.diagnostics.collect.collectives import no_collectives
from normscope.diagnostics.collect.sampling import Sampling
from normscope.diagnostics.collect.tensors import JoinLocation, TensorRegistry, is_measurable
from normscope.diagnostics.ranks.batches import BatchChecksums
from normscope.tracing.tensor_table import TensorLineage
from normscope.tracing.tracer import Hook, HookHandles

_Result = TypeVar("_Result")


@dataclass
class CallFrame:
    """A running call of a module."""

    module: nn.Module
    accumulator: ModuleAccumulator
    functions: dict[str, int] = field(default_factory=dict)
    """The number of calls of each function so far."""
    joins: int = 0
    finite_inputs: bool = True
    masked_inputs: bool = False
    """Whether an input contains minus infinity, as attention masks do. After the first input, it counts as finite."""
    channels: int = -1
    after_join: tuple[JoinLocation, str] | None = None
    """For a norm: the residual addition whose sum is its input, and the norm's name."""
    input_origin: str = ""
    """The producer of its input."""
    input_lineage: int | None = None
    skipped: bool = False
    """Whether the call is a recomputation for a checkpoint, which is not counted."""
    measured: bool = True
    """Whether the tensors of the call are measured; see `Sampling`."""


class XraySession:
    """The state of an x-ray while it is active."""

    def __init__(self) -> None:
        self.accumulators: dict[str, ModuleAccumulator] = {}
        self.functions: dict[str, list[str]] = {}  # the functions that each module called
        self.registry = TensorRegistry()
        self.lineage = TensorLineage()
        self.batch_checksums: BatchChecksums | None = None
        self.notices: dict[str, None] = {}
        self.batches = 0
        self.sampling = Sampling()
        self.in_step = False
        """Whether an optimizer steps, so that functions are those of its arithmetic."""
        self.skipped_steps = 0
        self.is_active = False
        self.has_dtensors = False
        """Whether the model has parameters of which each rank has a part, so that arithmetic may communicate."""
        self.thread: int | None = None
        self.found_non_finite_gradient = False
        self._order = 0
        self._lock = threading.RLock()
        self._reported_failures: set[tuple[str, type[Exception]]] = set()
        self._handles = HookHandles()

    def next_order(self) -> int:
        self._order += 1
        return self._order - 1

    def notice(self, text: str) -> None:
        self.notices[text] = None

    def guarded(self, where: str, work: Callable[..., _Result], *args: Any) -> _Result | None:
        """Run a part of the x-ray, one thread at a time. An error becomes a notice and never reaches the model.

        What it does with tensors is not recorded, and does not reach tensor subclasses.
        """
        try:
            with self._lock, torch._C.DisableTorchFunction(), no_collectives() if self.has_dtensors else nullcontext():
                return work(*args)
        except Exception as error:
            self.report_failure(where, error)
            return None

    def report_failure(self, where: str, error: Exception) -> None:
        """Add a notice about an error of the x-ray, once for each place and type."""
        kind = (where, type(error))
        if kind not in self._reported_failures:
            self._reported_failures.add(kind)
            self.notice(f"could not measure {where}: {type(error).__name__}: {' '.join(str(error).split()):.200}")

    def start(self) -> None:
        self.is_active, self.thread = True, threading.get_ident()

    def stop(self) -> None:
        self.is_active = False
        self._handles.remove()
        for table in (self.registry, self.lineage):
            table.clear()

    @property
    def is_paused(self) -> bool:
        """Whether nothing is recorded now: outside of the block, and during torch.jit.trace."""
        if not self.is_active:
            return True
        if torch._C._is_tracing():
            self.notice("calls during torch.jit.trace were not recorded")
            return True
        return False

    def watch_gradient(self, tensor: Tensor, accumulator: ModuleAccumulator) -> None:
        """Measure the gradient of a tensor when it arrives, for the module that produced the tensor."""
        if not tensor.requires_grad or not is_measurable(tensor):
            return
        consumers = self.registry.of(tensor).consumers

        def add_gradient(gradient: Tensor) -> None:
            moments = self.registry.moments(gradient)
            accumulator.add_gradient(moments, gradient)
            if moments.non_finite and not self.found_non_finite_gradient:
                self._locate_non_finite_gradient(accumulator, consumers)

        def hook(gradient: Tensor) -> None:
            if self.is_loss_gradient(gradient):
                self.guarded(f"the gradient of `{accumulator.name}`", add_gradient, gradient)

        self._handles.add(tensor.register_hook(Hook(hook)))

    def is_loss_gradient(self, gradient: Tensor) -> bool:
        """Whether a gradient is that of the loss, and not one that is differentiated again (a gradient penalty)."""
        if not self.is_active or not is_measurable(gradient):
            return False
        if torch.is_grad_enabled():
            self.notice("gradients computed with create_graph=True were not recorded: they are part of the loss")
            return False
        return True

    def _locate_non_finite_gradient(self, producer: ModuleAccumulator, consumers: list[str]) -> None:
        """Mark the module that made the first non-finite gradient: the innermost consumer of the tensor.

        The innermost consumer is the last one whose own output has a finite gradient.
        """
        self.found_non_finite_gradient = True
        around = (self.accumulators[name] for name in reversed(consumers))
        innermost = next((a for a in around if a.gradient is None or not a.gradient.non_finite), producer)
        innermost.produced_non_finite_gradient = True
