"""Watch the optimizers: what their steps have to work with and what they change, their settings and schedules."""

import math
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from normscope.diagnostics.collect.parameter_values import sample_values
from normscope.diagnostics.collect.parameters import parameters_of
from normscope.diagnostics.collect.session import CallFrame
from normscope.diagnostics.collect.source_lines import source_line
from normscope.diagnostics.collect.tensors import sample_elements
from normscope.diagnostics.collect.tracked_parameter import TrackedParameter
from normscope.diagnostics.module_names import common_parent, is_inside, parent_name
from normscope.diagnostics.stats.loop import ClippingRecord, LoopRecord, OptimizerRecord, ScheduleRecord
from normscope.diagnostics.watchers.watcher import Watched, Watcher
from normscope.tracing.nested_tensors import tensors_in
from normscope.tracing.sharded import local_part
from normscope.tracing.tracer import FunctionCall

_MATRICES = 8
"""Weight matrices of an optimizer that are measured, spread over all."""

_SAMPLE = 256
"""Elements of a gradient that are compared with those of the step before."""

_MAX_STEPS = 1000
"""Learning rates that are kept for an optimizer."""

_MAX_BACKWARD = 512
"""Backward passes that are told apart."""

_MIN_CLIPPED, _CLIPPED = 32, 0.9
"""Elements, and the fraction of them that have the same size after clipping each."""

_MEAN_SQUARES = ("exp_avg_sq", "square_avg", "sum")
"""Names of the averages of squared gradients in the states of torch's optimizers."""


@dataclass
class _Seen:
    """An optimizer, and what was seen of it. It is not kept alive; one in its place continues its record."""

    optimizer: "weakref.ref[Optimizer]"
    kind: str
    is_torch: bool
    settings: dict[str, Any] = field(default_factory=dict)
    recreated: int = 0
    is_adaptive: bool = False
    tracked: list[TrackedParameter] = field(default_factory=list)
    matrices: list[TrackedParameter] = field(default_factory=list)
    module: str = ""
    is_frozen: bool = True
    size: int = -1
    scheduled: int = 0
    is_nested: bool = False
    steps: int = 0
    discarded: int = 0
    without_gradient: int = 0
    zeroed: int = 0
    repeated: int = 0
    unchanged: int = 0
    gradients: int = 0
    """Gradients that its parameters had received at its last step or reset."""
    since_step: int = 0
    """The same at its last step."""
    changes: float = 0.0
    before: list[Tensor] = field(default_factory=list)
    last_gradient: Tensor | None = None
    pending: set[int] = field(default_factory=set)
    """The backward passes in its gradients."""
    used: list[frozenset[int]] = field(default_factory=list)
    """For each step, the backward passes in its gradients."""
    stepped_at: list[int] = field(default_factory=list)
    """For each step, the number of backward passes before it."""
    reached: set[int] = field(default_factory=set)
    """The backward passes that gave it a gradient."""
    counted: int = 0
    lr: list[float] = field(default_factory=list)
    peak_lr: float | None = None
    decay_share: float | None = None
    eps_share: float | None = None
    moved: float | None = None
    clipped: float | None = None

    def received(self) -> int:
        return sum(tracked.gradients for tracked in self.tracked)


class OptimizerWatcher(Watcher):
    """Watch what each step of an optimizer that holds parameters of the model has to work with, and what it changes."""

    functions = ("amp_update_scale",)

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._seen: dict[int, _Seen] = {}
        self._schedules: dict[int, tuple[ScheduleRecord, _Seen | None]] = {}
        self._clipping: dict[tuple[float, str | None], ClippingRecord] = {}
        self._backward = self._scaler_updates = self._discarded = self._received = 0
        self._running: list[Optimizer] = []
        self._last_input: Any = None
        self._passes = self._same_inputs = 0

    def _of(self, optimizer: Optimizer) -> _Seen | None:
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
            seen.settings = _settings(optimizer)
            seen.size, seen.tracked = len(parameters), tracked
            seen.module = self._module_of(tracked)
            seen.is_frozen = not any(t.parameter.requires_grad for t in tracked)
            matrices = [t for t in tracked if t.parameter.dim() >= 2]
            seen.matrices = matrices[:: max(1, -(-len(matrices) // _MATRICES))]
            seen.since_step = min(seen.since_step, seen.received())
        return seen

    def _new(self, optimizer: Optimizer, tracked: list[TrackedParameter]) -> _Seen:
        """Start the record of an optimizer, or continue that of one which is gone and had the same parameters."""
        kind, held = type(optimizer), [id(one) for one in tracked]
        for key, seen in self._seen.items():
            is_same = seen.kind == kind.__name__ and [id(one) for one in seen.tracked] == held
            if seen.optimizer() is None and is_same:
                del self._seen[key]
                seen.optimizer, seen.recreated = weakref.ref(optimizer), seen.recreated + 1
                break
        else:
            seen = _Seen(weakref.ref(optimizer), kind.__name__, kind.__module__.startswith("torch."))
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
            if seen.pending and not any(_has_gradient(t.parameter) for t in (seen.matrices or seen.tracked)[:2]):
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

    def clip_gradients(self, parameters: Sequence[Tensor], norm: float, limit: float) -> None:
        if any(id(parameter) in self.watched.parameters.tracked for parameter in parameters):
            line = source_line()
            known = self._clipping.get((limit, line)) or ClippingRecord(limit, 0, norm, norm, line)
            self._clipping[limit, line] = ClippingRecord(
                limit, known.calls + 1, min(known.smallest, norm), max(known.largest, norm), line
            )

    def step_schedule(self, scheduler: Any) -> None:
        optimizer = getattr(scheduler, "optimizer", None)
        seen = self._of(optimizer) if isinstance(optimizer, Optimizer) else None
        if seen is not None:
            seen.scheduled += 1
        known = self._schedules.get(id(scheduler))
        steps, line = (1, source_line()) if known is None else (known[0].steps + 1, known[0].source)
        self._schedules[id(scheduler)] = _schedule(scheduler, steps, line), seen

    def before_step(self, optimizer: Optimizer) -> None:
        self._running.append(optimizer)
        seen = self._of(optimizer)
        if seen is None:
            return
        seen.is_nested = seen.is_nested or len(self._running) > 1
        seen.is_frozen = seen.is_frozen and not any(t.parameter.requires_grad for t in seen.tracked)
        received = seen.received()
        is_new = received > seen.since_step
        seen.changes = _changes(seen.tracked)
        gradient = _gradient_sample(seen.tracked)
        if gradient is None:
            seen.without_gradient += 1
            # Otherwise the loss gave gradients of zero, as a saturated output does.
            was_reset = received == seen.gradients or all(t.parameter.grad is None for t in seen.tracked)
            had_any = any(t.gradient is not None and t.gradient.rms > 0 for t in seen.tracked)
            seen.zeroed += is_new and was_reset and had_any
        elif not is_new and seen.last_gradient is not None and torch.equal(gradient, seen.last_gradient):
            seen.repeated += 1
        seen.last_gradient = gradient
        if self._backward <= _MAX_BACKWARD:
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
        if _gradient_sample(seen.tracked) is not None and seen.last_gradient is None and seen.without_gradient:
            seen.without_gradient -= 1  # a closure computed them
            seen.zeroed = min(seen.zeroed, seen.without_gradient)
        seen.steps += 1
        seen.settings, seen.is_adaptive = _settings(optimizer), _is_adaptive(optimizer)
        if not isinstance(optimizer, torch.optim.LBFGS):  # its updates are not measured
            seen.unchanged += _changes(seen.tracked) == seen.changes
        groups = optimizer.param_groups
        if len(seen.lr) < _MAX_STEPS:
            seen.lr.append(max(float(group.get("lr", 0.0)) for group in groups))
        seen.peak_lr = max((float(group["initial_lr"]) for group in groups if "initial_lr" in group), default=None)
        if seen.before:
            self._measure(seen, optimizer)
            seen.before = []

    def _measure(self, seen: _Seen, optimizer: Optimizer) -> None:
        """Compare the parts of the update of some weight matrices."""
        decay: list[float] = []
        eps: list[float] = []
        moved: list[float] = []
        largest: set[float] = set()
        for tracked, before in zip(seen.matrices, seen.before, strict=True):
            parameter = tracked.parameter
            group = next(g for g in optimizer.param_groups if any(p is parameter for p in g["params"]))
            gradient = None if parameter.grad is None else local_part(parameter.grad)
            if gradient is None or gradient.is_sparse:
                continue
            old, new = before.double(), sample_values(local_part(parameter)).double()
            slope = sample_elements(gradient, len(before)).double()
            if old.shape != new.shape or slope.shape != old.shape or not slope.any():
                continue
            if parameter.dtype in (torch.float16, torch.bfloat16):
                moved.append(float(((old != new) & (slope != 0)).sum() / (slope != 0).sum()))
            largest.add(_value_limit(slope))
            decay += _decay_share(seen, group, old, new, slope)
            eps += _eps_share(optimizer.state.get(parameter, {}), group, len(before))
        if decay:
            seen.decay_share = max(seen.decay_share or 0.0, median(decay))
        is_clipped = len(largest) == 1 and largest != {0.0}
        seen.clipped = largest.pop() if is_clipped and (seen.clipped or seen.steps == 1) else None
        if eps:
            seen.eps_share = median(eps)
        if moved:
            seen.moved = max(seen.moved or 0.0, median(moved))

    def finish(self) -> dict[str, Any]:
        order = {id(seen): index for index, seen in enumerate(self._seen.values())}
        schedules = tuple(replace(made, optimizer=order.get(id(seen))) for made, seen in self._schedules.values())
        record = LoopRecord(
            tuple(self._finish(seen) for seen in self._seen.values()),
            schedules,
            tuple(self._clipping.values()),
            self._backward,
            self._discarded,
            self._scaler_updates,
            2 * self._same_inputs > self._passes,
        )
        self._seen.clear()
        self._schedules.clear()
        return {"loop": record}

    def _finish(self, seen: _Seen) -> OptimizerRecord:
        group = seen.settings
        betas = group.get("betas") or (None, None)
        mixed, other = self._mixed(seen)
        return OptimizerRecord(
            kind=seen.kind,
            recreated=seen.recreated,
            module=seen.module,
            parameters=len(seen.tracked),
            is_frozen=seen.is_frozen,
            scheduled=seen.scheduled,
            shared_with=self._shared_with(seen),
            clipped=seen.clipped,
            is_torch=seen.is_torch,
            steps=seen.steps,
            discarded=seen.discarded,
            without_gradient=seen.without_gradient,
            zeroed=seen.zeroed,
            repeated=seen.repeated,
            unchanged=seen.unchanged,
            mixed=mixed,
            mixed_with="" if other is None else other.module,
            leads_to=other is not None and any(used and max(used) in other.reached for used in seen.used),
            lr=tuple(seen.lr),
            peak_lr=seen.peak_lr,
            weight_decay=_number(group.get("weight_decay")),
            momentum=_number(group.get("momentum")),
            beta1=_number(betas[0]),
            beta2=_number(betas[1]),
            eps=_number(group.get("eps")),
            is_decoupled=_is_decoupled(seen.kind, group),
            is_adaptive=seen.is_adaptive,
            decay_share=seen.decay_share,
            eps_share=seen.eps_share,
            moved=seen.moved,
        )

    def _shared_with(self, seen: _Seen) -> str | None:
        """The module of an optimizer whose parameters this one also steps, beside others, on other backward passes."""
        own = {id(t) for t in seen.tracked}
        for other in self._seen.values():
            theirs = {id(t) for t in other.tracked}
            if theirs < own and other.steps and seen.steps and not (seen.is_nested or other.is_nested):
                used, their_used = set().union(*seen.used), set().union(*other.used)
                if used - their_used and their_used - used:
                    return other.module
        return None

    def _mixed(self, seen: _Seen) -> tuple[int, _Seen | None]:
        """Steps with gradients of a backward pass that another optimizer used, beside a later one of its own."""
        for other in self._seen.values():
            if other is seen or {id(t) for t in other.tracked} & {id(t) for t in seen.tracked}:
                continue
            theirs = set().union(*other.used)
            steps = list(zip(other.used, other.stepped_at, strict=True))
            count = 0
            for used in seen.used:
                last = max(used, default=0)
                if last not in theirs:
                    count += any(used & before for before, at in steps if at < last)
            if count:
                return count, other
        return 0, None


def _has_gradient(parameter: Tensor) -> bool:
    gradient = parameter.grad
    if gradient is None:
        return False
    gradient = local_part(gradient)
    return gradient.is_sparse or bool(gradient.any())


def _gradient_sample(tracked: list[TrackedParameter]) -> Tensor | None:
    """Some elements of the first nonzero gradient; None if there is none."""
    for one in tracked:
        if one.parameter.grad is not None and _has_gradient(one.parameter):
            gradient = local_part(one.parameter.grad)
            return torch.zeros(0) if gradient.is_sparse else sample_elements(gradient, _SAMPLE).clone()
    return None


def _changes(tracked: list[TrackedParameter]) -> float:
    """A sum that each step raises which changes a parameter; NaN after one that made it non-finite."""
    return sum(one.update_rms for one in tracked)


def _is_measured(step: int) -> bool:
    """Steps 1, 2, 4, 8, ...: the parts of an update change slowly."""
    return step & (step - 1) == 0


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float | Tensor) and not isinstance(value, bool) else None


def _settings(optimizer: Optimizer) -> dict[str, Any]:
    return {name: value for name, value in optimizer.param_groups[0].items() if name != "params"}


def _is_decoupled(kind: str, group: dict[str, Any]) -> bool:
    return kind == "AdamW" or bool(group.get("decoupled_weight_decay"))


def _is_adaptive(optimizer: Optimizer) -> bool:
    return any(name in state for state in list(optimizer.state.values())[:1] for name in _MEAN_SQUARES)


def _decay_share(seen: _Seen, group: dict[str, Any], old: Tensor, new: Tensor, slope: Tensor) -> Iterator[float]:
    """Weight decay relative to the gradient, in the update of one weight, for the optimizers of torch."""
    decay = _number(group.get("weight_decay")) or 0.0
    if not decay or not seen.is_torch:
        return
    shrunk, rest = decay * old, slope
    if _is_decoupled(seen.kind, group):
        shrunk = decay * float(group["lr"]) * old
        rest = new - old + shrunk
    size = float(rest.norm())
    yield float(shrunk.norm()) / size if size > 0 else math.inf if shrunk.any() else 0.0


def _eps_share(state: dict[str, Any], group: dict[str, Any], count: int) -> Iterator[float]:
    """eps over the median of the root of the average squared gradient, of one weight."""
    name = next((name for name in _MEAN_SQUARES if isinstance(state.get(name), Tensor)), None)
    eps = _number(group.get("eps"))
    if name is None or not eps:
        return
    squares = sample_elements(local_part(state[name]), max(count, 1)).double()
    squares = squares[squares > 0]
    if name == "exp_avg_sq" and "step" in state and "betas" in group:
        squares = squares / (1 - float(group["betas"][1]) ** max(1.0, float(state["step"])))
    if squares.numel():
        yield eps / float(squares.median().sqrt())


def _value_limit(gradient: Tensor) -> float:
    """The size that nearly all elements have, as after clip_grad_value_; 0 if they differ."""
    sizes = gradient[gradient != 0].abs()
    limit = sizes.max()
    return float(limit) if len(sizes) >= _MIN_CLIPPED and float((sizes == limit).double().mean()) >= _CLIPPED else 0.0


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
