"""What those who watch modules and those who watch functions share: who is running, what is known of tensors."""

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from normscope.diagnostics import record
from normscope.diagnostics.collect.accumulators import ModuleAccumulator
from normscope.diagnostics.collect.hooks import Hook, HookHandles
from normscope.diagnostics.collect.losses import ProbabilityTracker
from normscope.diagnostics.collect.tensor_registry import JoinLocation, TensorRegistry
from normscope.diagnostics.collect.tensors import is_measurable
from normscope.ops.moments import Moments

_LOSSES = 1000
"""So many are kept, and after them the first that is not finite."""

_Found = TypeVar("_Found")


@dataclass
class CallFrame:
    """A module that is running: who it is, and how often it has called each function so far."""

    module: nn.Module
    accumulator: ModuleAccumulator
    functions: dict[str, int] = field(default_factory=dict)
    joins: int = 0
    finite_inputs: bool = True
    masked_inputs: bool = False
    """It was given minus infinity, as masks have it: beside its first input, such a mask counts as finite."""
    channels: int = -1
    after_join: tuple[JoinLocation, str] | None = None
    """The addition whose sum it was given, and its own name, if it is a norm."""
    place: str = ""
    """Who made what it was given."""
    skipped: bool = False
    """Computed once more on the way back, for a checkpoint: nothing is counted."""


class _Running(threading.local):
    """The modules that are running, of each thread its own."""

    def __init__(self) -> None:
        self.stack: list[CallFrame] = []


class XraySession:
    """The state of an x-ray while it looks."""

    def __init__(self) -> None:
        self.accumulators: dict[str, ModuleAccumulator] = {}
        self.functions: dict[str, list[str]] = {}  # of each module, the functions that it called
        self.registry = TensorRegistry()
        self.losses: list[record.LossRecord] = []
        self.probabilities = ProbabilityTracker()
        self.notices: dict[str, None] = {}
        self.batches = 0
        self.skipped_steps = 0
        self.is_active = False
        self.unreal_gradient_found = False
        self._order = 0
        self._running = _Running()
        self._lock = threading.RLock()
        self._reported_failures: set[tuple[str, type[Exception]]] = set()
        self._handles = HookHandles()

    @property
    def stack(self) -> list[CallFrame]:
        """The modules that are running in this thread, the outermost first."""
        return self._running.stack

    def next_order(self) -> int:
        self._order += 1
        return self._order - 1

    def notice(self, text: str) -> None:
        self.notices[text] = None

    def guarded(self, where: str, work: Callable[..., _Found], *args: Any) -> _Found | None:
        """Do a piece of the x-ray's own work, one thread at a time; what goes wrong in it is told, and never raised
        into the model's own run."""
        try:
            with self._lock:
                return work(*args)
        except Exception as error:
            self.report_failure(where, error)
            return None

    def report_failure(self, where: str, error: Exception) -> None:
        """Say that something could not be looked at; once for each place and kind of error."""
        kind = (where, type(error))
        if kind not in self._reported_failures:
            self._reported_failures.add(kind)
            self.notice(f"{where} could not be looked at: {type(error).__name__}: {' '.join(str(error).split()):.200}")

    def stop(self) -> None:
        self.is_active = False
        self._handles.remove()
        self._running = _Running()
        self.registry.clear()
        self.probabilities.clear()

    @property
    def is_paused(self) -> bool:
        """Whether nothing is to be looked at now: after the block, and while torch writes down what a model does."""
        if not self.is_active:
            return True
        if torch._C._is_tracing():
            self.notice("torch.jit.trace: what the model did while it was traced was not looked at")
            return True
        return False

    @property
    def is_skipping(self) -> bool:
        return bool(self.stack) and self.stack[-1].skipped

    def add_loss(self, value: float, classes: int, given: str | None = None, given_by: str | None = None) -> None:
        first_unreal = not math.isfinite(value) and math.isfinite(self.losses[-1].value) if self.losses else False
        if len(self.losses) < _LOSSES or first_unreal:
            self.losses.append(record.LossRecord(value, classes, given, given_by))

    def watch_gradient(self, tensor: Tensor, accumulator: ModuleAccumulator) -> None:
        """When the loss's gradient of a tensor comes, measure it for the one that made the tensor."""
        if not tensor.requires_grad or not is_measurable(tensor):
            return
        consumers = self.registry.of(tensor).consumers

        def take(gradient: Tensor) -> None:
            found = self.registry.moments(gradient)
            accumulator.add_gradient(found, gradient)
            if found.non_finite and not self.unreal_gradient_found:
                self._blame(accumulator, consumers)

        def hook(gradient: Tensor) -> None:
            if self.is_loss_gradient(gradient):
                self.guarded(f"the gradient of `{accumulator.name}`", take, gradient)

        self._handles.add(tensor.register_hook(Hook(hook)))

    def is_loss_gradient(self, gradient: Tensor) -> bool:
        """Whether it is a gradient of the loss. One that will itself be differentiated, such as that of a penalty on
        gradients, is a part of the way forward."""
        if not self.is_active or not is_measurable(gradient):
            return False
        if torch.is_grad_enabled():
            self.notice("gradients that were made with create_graph=True are not counted: they are a part of the loss")
            return False
        return True

    def _blame(self, maker: ModuleAccumulator, consumers: list[str]) -> None:
        """The gradient of a tensor is not finite, for the first time: it was made by one of those that read the tensor.

        The innermost one is meant, which is the last that was given it before another began.
        """
        self.unreal_gradient_found = True
        for name in reversed(consumers):
            reader = self.accumulators[name]
            if reader.gradient is None or not reader.gradient.non_finite:
                reader.made_unreal_gradient = True
                return
        maker.made_unreal_gradient = True

    def moments(self, tensor: Tensor) -> Moments:
        return self.registry.moments(tensor)
