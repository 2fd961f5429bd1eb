"""Watch the optimizers: what their steps have to work with and what they change, their settings and schedules."""

import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from normscope.diagnostics.collect.parameters import parameters_of
from normscope.diagnostics.collect.session import CallFrame
from normscope.diagnostics.collect.source_lines import source_line
from normscope.diagnostics.collect.tensors import sample_items
from normscope.diagnostics.collect.tracked_parameter import TrackedParameter
from normscope.diagnostics.module_names import common_parent, is_inside, parent_name
from normscope.diagnostics.stats.loop import ClippingRecord, LoopRecord, ScheduleRecord
from normscope.diagnostics.watchers.optimizers.optimizer_record import record_of
from normscope.diagnostics.watchers.optimizers.seen import SeenOptimizer
from normscope.diagnostics.watchers.optimizers.updates import (
    gradient_sample,
    has_gradient,
    is_adaptive,
    measure_update,
    settings,
    sum_of_updates,
)
from normscope.diagnostics.watchers.watcher import Watched, Watcher
from normscope.tracing.nested_tensors import tensors_in
from normscope.tracing.sharded import is_dtensor
from normscope.tracing.tracer import FunctionCall

_MATRICES = 8
"""Weight matrices of an optimizer that are measured, spread over all."""

_MAX_STEPS = 1000
"""Learning rates that are kept for an optimizer."""

_MAX_BACKWARD = 512
"""Backward passes that are told apart, and steps whose backward passes are known."""

_MAX_LIMITS = _MAX_SCHEDULES = 64
"""Limits of gradient norms, and learning rate schedulers, that are kept."""


class OptimizerWatcher(Watcher):
    """Watch what each step of an optimizer that holds parameters of the model has to work with, and what it changes."""

    functions = ("amp_update_scale",)

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._seen: dict[int, SeenOptimizer] = {}
        self._schedules: dict[int, tuple[ScheduleRecord, SeenOptimizer | None]] = {}
        self._clipping: dict[tuple[float, str | None], ClippingRecord] = {}
        self._backward = self._scaler_updates = self._discarded = self._received = 0
        self._running: list[Optimizer] = []
        self._last_input: Any = None
        self._passes = self._same_inputs = 0

    def _of(self, optimizer: Optimizer) -> SeenOptimizer | None:
        """What was seen of an optimizer; None if it holds no parameter of the model."""
        seen = self._seen.get(id(optimizer))
        seen = None if seen is None or seen.optimizer() is not optimizer else seen
        parameters = parameters_of(optimizer)
        if seen is None or seen.size != len(parameters):
            known = self.watched.parameters.tracked
            tracked = [known[id(p)] for p in parameters if id(p) in known]
            if not tracked:
                return None
            seen = seen or self._new(optimizer, tracked)
            seen.settings = settings(optimizer)
            seen.size, seen.tracked = len(parameters), tracked
            seen.module = self._module_of(tracked)
            seen.is_frozen = not any(t.parameter.requires_grad for t in tracked)
            matrices = [t for t in tracked if t.parameter.dim() >= 2]
            seen.matrices = sample_items(matrices, _MATRICES)
            seen.since_step = min(seen.since_step, seen.received())
        return seen

    def _new(self, optimizer: Optimizer, tracked: list[TrackedParameter]) -> SeenOptimizer:
        """Start the record of an optimizer, or continue that of one which is gone and had the same parameters."""
        kind, held = type(optimizer), [id(one) for one in tracked]
        for key, seen in self._seen.items():
            is_same = seen.kind == kind.__name__ and [id(one) for one in seen.tracked] == held
            if seen.optimizer() is None and is_same:
                del self._seen[key]
                seen.optimizer, seen.recreated = weakref.ref(optimizer), seen.recreated + 1
                break
        else:
            seen = SeenOptimizer(weakref.ref(optimizer), kind.__name__, kind.__module__.startswith("torch."))
        self._seen[id(optimizer)] = seen
        return seen

    def _module_of(self, tracked: list[TrackedParameter]) -> str:
        """The outermost module with these parameters and no others; if there is none, the innermost with all."""
        name = common_parent([parent_name(t.name) for t in tracked])
        held, known = {t.name for t in tracked}, self.watched.parameters.tracked.values()
        while name and all(t.name in held for t in known if is_inside(t.name, parent_name(name))):
            name = parent_name(name)
        return name

    def enter_module(self, frame: CallFrame, args: Any, kwargs: Any, outer: Sequence[CallFrame]) -> None:
        if outer or not torch.is_grad_enabled():
            return
        first = next(tensors_in((args, kwargs)), None)
        last = None if self._last_input is None else self._last_input()
        self._passes += 1
        self._same_inputs += first is not None and last is first
        self._last_input = None if first is None else weakref.ref(first)

    def call_function(self, call: FunctionCall, result: Any) -> None:
        self._scaler_updates += 1

    def before_backward(self, roots: Sequence[Tensor]) -> None:
        for seen in self._seen.values():
            if seen.pending and not any(has_gradient(t.parameter) for t in (seen.matrices or seen.tracked)[:2]):
                seen.pending.clear()  # reset by hand
            seen.counted = seen.received()

    def after_backward(self, roots: Sequence[Tensor]) -> None:
        self._backward += 1
        for seen in self._seen.values() if self._backward <= _MAX_BACKWARD else ():
            if seen.received() > seen.counted:
                seen.pending.add(self._backward)
                seen.reached.add(self._backward)

    def zero_grad(self, owner: Optimizer | nn.Module) -> None:
        if isinstance(owner, nn.Module):
            if owner in self.watched.names:
                received = sum(tracked.gradients for tracked in self.watched.parameters.tracked.values())
                self._discarded += received > self._received
                self._received = received
                for seen in self._seen.values():
                    seen.pending.clear()
                    seen.gradients = seen.received()
            return
        known = self._of(owner)
        if known is not None:
            received = known.received()
            for tracked in known.tracked:
                tracked.in_optimizer = True
            known.discarded += received > known.gradients
            known.gradients = received
            known.pending.clear()

    def clip_gradients(self, parameters: Sequence[Tensor], norm: Tensor, limit: float) -> None:
        if is_dtensor(norm):  # to know it, the ranks would have to communicate
            return
        if any(id(parameter) in self.watched.parameters.tracked for parameter in parameters):
            line, limit, size = source_line(), float(limit), float(norm)
            known = self._clipping.get((limit, line))
            if known is None:
                if len(self._clipping) >= _MAX_LIMITS:  # they adapt to the gradients
                    return
                known = ClippingRecord(limit, 0, size, size, line)
            self._clipping[limit, line] = ClippingRecord(
                limit, known.calls + 1, min(known.smallest, size), max(known.largest, size), line
            )

    def step_schedule(self, scheduler: Any) -> None:
        optimizer = getattr(scheduler, "optimizer", None)
        seen = self._of(optimizer) if isinstance(optimizer, Optimizer) else None
        if seen is not None:
            seen.scheduled += 1
        known = self._schedules.get(id(scheduler))
        if known is None and len(self._schedules) >= _MAX_SCHEDULES:
            return
        steps, line = (1, source_line()) if known is None else (known[0].steps + 1, known[0].source)
        self._schedules[id(scheduler)] = _schedule(scheduler, steps, line), seen

    def before_step(self, optimizer: Optimizer) -> None:
        if optimizer in self._running:  # its last step ended with an error
            del self._running[self._running.index(optimizer) :]
        self._running.append(optimizer)
        seen = self._of(optimizer)
        if seen is None:
            return
        seen.is_nested = seen.is_nested or len(self._running) > 1
        seen.is_frozen = seen.is_frozen and not any(t.parameter.requires_grad for t in seen.tracked)
        received = seen.received()
        is_new = received > seen.since_step
        seen.changes = sum_of_updates(seen.tracked)
        gradient = gradient_sample(seen.tracked)
        if gradient is None:
            seen.without_gradient += 1
            seen.zeroed += is_new and any(t.gradient is not None and t.gradient.rms > 0 for t in seen.tracked)
        elif not is_new and seen.last_gradient is not None and torch.equal(gradient, seen.last_gradient):
            seen.repeated += 1
        seen.last_gradient = gradient
        if self._backward <= _MAX_BACKWARD and len(seen.used) < _MAX_BACKWARD:
            seen.used.append(frozenset(seen.pending))
            seen.stepped_at.append(self._backward)
        self._received = sum(tracked.gradients for tracked in self.watched.parameters.tracked.values())
        seen.gradients = seen.since_step = received
        if _is_measured(seen.steps + 1):
            seen.before = [tracked.before for tracked in seen.matrices]

    def after_step(self, optimizer: Optimizer) -> None:
        while self._running and self._running.pop() is not optimizer:
            pass  # steps that ended with an error
        seen = self._of(optimizer)
        if seen is None:
            return
        if gradient_sample(seen.tracked) is not None and seen.last_gradient is None and seen.without_gradient:
            seen.without_gradient -= 1  # a closure computed them
            seen.zeroed = min(seen.zeroed, seen.without_gradient)
        seen.steps += 1
        seen.settings, seen.is_adaptive = settings(optimizer), is_adaptive(optimizer)
        if not isinstance(optimizer, torch.optim.LBFGS):  # its updates are not measured
            seen.unchanged += sum_of_updates(seen.tracked) == seen.changes
        groups = optimizer.param_groups
        if len(seen.lr) < _MAX_STEPS:
            seen.lr.append(max(float(group.get("lr", 0.0)) for group in groups))
        seen.peak_lr = max((float(group["initial_lr"]) for group in groups if "initial_lr" in group), default=None)
        if seen.before:
            measure_update(seen, optimizer)
            seen.before = []

    def finish(self) -> dict[str, Any]:
        order = {id(seen): index for index, seen in enumerate(self._seen.values())}
        schedules = tuple(replace(made, optimizer=order.get(id(seen))) for made, seen in self._schedules.values())
        record = LoopRecord(
            tuple(record_of(seen, self._seen.values()) for seen in self._seen.values()),
            schedules,
            tuple(self._clipping.values()),
            self._backward,
            self._discarded,
            self._scaler_updates,
            2 * self._same_inputs > self._passes,
        )
        self._seen.clear()
        self._schedules.clear()
        self._running.clear()
        return {"loop": record}


def _is_measured(step: int) -> bool:
    """Steps 1, 2, 4, 8, ...: the parts of an update change slowly."""
    return step & (step - 1) == 0


def _schedule(scheduler: Any, steps: int, line: str | None) -> ScheduleRecord:
    period, position = getattr(scheduler, "T_max", None), getattr(scheduler, "last_epoch", None)
    return ScheduleRecord(
        kind=type(scheduler).__name__,
        optimizer=None,
        steps=steps,
        source=line,
        position=position if isinstance(position, int) else None,
        period=int(period) if isinstance(period, int | float) else None,
    )
