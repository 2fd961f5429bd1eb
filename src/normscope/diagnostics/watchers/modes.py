"""Watch in which mode, training or eval, the modules that a training loop calls run."""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import Optimizer

from normscope.diagnostics.collect.parameters import parameters_of
from normscope.diagnostics.collect.session import CallFrame
from normscope.diagnostics.collect.source_lines import source_line, source_text
from normscope.diagnostics.collect.tensors import copy_elements, is_measurable, sample_items
from normscope.diagnostics.module_names import join_names
from normscope.diagnostics.stats.loop import EvalDropout, PassesRecord
from normscope.diagnostics.watchers.watcher import Watched, Watcher
from normscope.tracing.function_kinds import DROPOUTS
from normscope.tracing.nested_tensors import tensors_in
from normscope.tracing.sharded import local_part, sharded_by_whole
from normscope.tracing.tracer import FunctionCall, Hook, noop

_MAX_OUTSIDE = 32
"""Modules outside of the model that are watched."""

_SAMPLE = 64
"""Elements of a weight that show whether it moves."""

_MAX_WEIGHTS = 4

_MAX_PENDING = 256
"""Passes since the last backward pass that are followed."""


@dataclass
class _Unit:
    """A module that the loop calls, and the passes since the last step of its parameters. It is not kept alive."""

    kind: str
    name: str
    is_outside: bool
    is_outermost: bool
    depends: "weakref.WeakValueDictionary[str, nn.Module]"
    """Its modules that depend on the mode."""
    parameters: set[int]
    weights: "Sequence[weakref.ref[Tensor]]"
    at_start: list[Tensor]
    with_train: int = 0
    with_eval: int = 0
    unused: int = 0
    active: int = 0
    train_steps: int = 0
    eval_steps: int = 0
    unused_in_train: int = 0
    intervals: int = 0
    with_unused: int = 0
    steps: int = 0
    repeats_input: bool = False
    is_trained: bool = False
    last_input: Any = None
    pending: list[tuple[Any, str | None]] = field(default_factory=list)
    """Hooks on the outputs of passes in training mode since the last backward pass, and the lines of these passes."""
    source: str | None = None

    def next_interval(self) -> None:
        self.intervals += 1
        self.with_unused += self.unused > 0
        self.unused_in_train += self.unused
        self.with_train = self.with_eval = self.unused = 0
        self.last_input = None


class ModeWatcher(Watcher):
    """Count passes with and without gradients, in training and in eval mode, between the steps of each module."""

    functions = (*DROPOUTS, "scaled_dot_product_attention")

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._units: weakref.WeakKeyDictionary[nn.Module, _Unit] = weakref.WeakKeyDictionary()
        self._outside = 0
        self._inside: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._grad_modes: dict[int, bool] = {}
        self._dropouts: dict[tuple[str, str], EvalDropout] = {}
        self._steps = 0

    def enter_module(self, frame: CallFrame, args: Any, kwargs: Any, outer: Sequence[CallFrame]) -> None:
        with_grad = torch.is_grad_enabled()
        self._grad_modes[id(frame)] = with_grad
        if outer and (with_grad or not self._grad_modes.get(id(outer[-1]), False)):
            return
        unit = self._units.get(frame.module)
        if unit is None:
            unit = self._add(frame.module, frame.accumulator.name, is_outermost=not outer)
        self._take_pass(unit, frame.module, args, kwargs)

    def exit_module(self, frame: CallFrame, output: Any) -> None:
        with_grad = self._grad_modes.pop(id(frame), None)
        unit = self._units.get(frame.module) if with_grad else None
        if unit is not None and unit.is_outermost and output is not None and _is_active(unit, frame.module):
            self._watch_output(unit, output)

    def _watch_output(self, unit: _Unit, output: Any) -> None:
        tensor = next((t for t in tensors_in(output) if is_measurable(t) and t.requires_grad and not t.is_leaf), None)
        if tensor is not None and len(unit.pending) < _MAX_PENDING:
            unit.pending.append((tensor.register_hook(Hook(noop)), source_line()))

    def before_backward(self, roots: Sequence[Tensor]) -> None:
        for unit in list(self._units.values()):
            _take_dropped(unit)

    def call_outside_module(self, module: nn.Module, args: Any) -> None:
        if module in self._inside or self.session.is_paused:
            return
        unit = self._units.get(module)
        if unit is None:
            self._inside.update(list(module.modules())[1:])
            is_wrapper = any(inner in self.watched.names for inner in module.modules())
            if is_wrapper or self._outside >= _MAX_OUTSIDE or next(module.parameters(), None) is None:
                self._inside.add(module)
                return
            self._outside += 1
            unit = self._add(module, "", is_outside=True)
        self._take_pass(unit, module, args, {})

    def _add(self, module: nn.Module, name: str, *, is_outside: bool = False, is_outermost: bool = True) -> _Unit:
        modules = {join_names(name, own): inner for own, inner in module.named_modules() if _depends_on_mode(inner)}
        shards = sharded_by_whole(module)  # the whole of a sharded parameter is freed after the pass
        parameters = [shards.get(id(parameter), parameter) for parameter in module.parameters()]
        weights = [p for p in parameters if not is_lazy(p) and is_measurable(local_part(p)) and p.dim() >= 2]
        weights = sample_items(weights, _MAX_WEIGHTS)
        self._units[module] = unit = _Unit(
            type(module).__name__,
            name,
            is_outside,
            is_outermost,
            weakref.WeakValueDictionary(modules),
            {id(p) for p in parameters},
            [weakref.ref(weight) for weight in weights],
            [copy_elements(weight, _SAMPLE) for weight in weights],
        )
        return unit

    def _take_pass(self, unit: _Unit, module: nn.Module, args: Any, kwargs: Any) -> None:
        if not unit.depends:
            return
        is_active = _is_active(unit, module)
        unit.active += is_active
        if not torch.is_grad_enabled():
            if is_active and not any(map(_is_estimating, unit.depends.values())):
                self._take_unused(unit, args, kwargs)
        elif is_active:
            unit.with_train += 1
        elif not any(inner.training for inner in module.modules()):
            unit.with_eval += not all(_is_frozen(inner) for inner in unit.depends.values())

    def _take_unused(self, unit: _Unit, args: Any, kwargs: Any) -> None:
        first = next(tensors_in((args, kwargs)), None)
        last = None if unit.last_input is None else unit.last_input()
        unit.repeats_input = unit.repeats_input or (first is not None and last is first)
        unit.last_input = None if first is None else weakref.ref(first)
        if not unit.unused:
            unit.source = unit.source or source_line()
        unit.unused += 1

    def before_step(self, optimizer: Optimizer) -> None:
        self._steps += 1
        held = set(map(id, parameters_of(optimizer)))
        for unit in list(self._units.values()):
            unit.steps += 1
            if held.isdisjoint(unit.parameters):
                continue
            unit.is_trained = True
            if unit.with_train:
                unit.train_steps += 1
            elif unit.with_eval:
                unit.eval_steps += 1
            if unit.with_train or unit.with_eval:
                unit.next_interval()

    def call_function(self, call: FunctionCall, result: Any) -> None:
        if not call.frames:
            return
        p, is_training = _dropout_settings(call)
        if not 0 < p <= 1:
            return
        frame = call.frames[-1]
        module, name = frame.module, frame.accumulator.name
        unit = self._units.get(call.frames[0].module)
        if unit is not None and not _depends_on_mode(module):
            self._add_functional(unit, call.frames[0].module, module, name)
        if not is_training or module.training or call.frames[0].module.training:
            return
        known = self._dropouts.get((name, call.name))
        if known is None:
            text = source_text().replace(" ", "")
            is_explicit = "training=True" in text or "train=True" in text
            known = EvalDropout(name, call.name, float(p), source_line(), is_explicit, 0)
        self._dropouts[name, call.name] = replace(known, calls=known.calls + 1)

    def _add_functional(self, unit: _Unit, outermost: nn.Module, module: nn.Module, name: str) -> None:
        if name not in unit.depends:
            unit.depends[name] = module
            if outermost.training and not unit.with_train and torch.is_grad_enabled():
                unit.with_train = 1  # of the pass that is running

    def finish(self) -> dict[str, Any]:
        passes = []
        for module, unit in list(self._units.items()):
            _take_dropped(unit)
            if unit.unused:
                unit.next_interval()
            if unit.depends and unit.parameters:
                passes.append(_record(unit, module))
        self._units.clear()
        return {"modes": tuple(passes), "eval_dropouts": tuple(self._dropouts.values())}


def _is_active(unit: _Unit, module: nn.Module) -> bool:
    return bool(module.training) and any(inner.training for inner in unit.depends.values())


def _take_dropped(unit: _Unit) -> None:
    """Count passes with gradients whose graph is gone, although there was no backward pass."""
    for handle, line in unit.pending:
        if handle.hooks_dict_ref() is None:
            unit.unused += 1
            unit.source = unit.source or line
        handle.remove()
    unit.pending.clear()


def _record(unit: _Unit, module: nn.Module) -> PassesRecord:
    got_gradient = any(parameter.grad is not None for parameter in module.parameters())
    weights = [(reference(), start) for reference, start in zip(unit.weights, unit.at_start, strict=True)]
    moved = any(weight is None or not torch.equal(copy_elements(weight, _SAMPLE), start) for weight, start in weights)
    return PassesRecord(
        module=unit.name,
        kind=unit.kind,
        is_outside=unit.is_outside,
        is_outermost=unit.is_outermost,
        depends_on_mode=next(iter(unit.depends)),
        train_steps=unit.train_steps,
        eval_steps=unit.eval_steps,
        active=unit.active,
        unused_in_train=unit.unused_in_train,
        intervals=unit.intervals,
        with_unused=unit.with_unused,
        repeats_input=unit.repeats_input,
        is_trained=unit.is_trained or got_gradient,
        moved=moved,
        steps=unit.steps,
        source=unit.source,
    )


def _depends_on_mode(module: nn.Module) -> bool:
    """Whether a module of torch behaves differently in training, as it is set up."""
    if isinstance(module, _DropoutNd):
        return bool(module.p > 0)
    if isinstance(module, nn.MultiheadAttention):
        return bool(module.dropout > 0)
    if isinstance(module, nn.RNNBase):
        return module.dropout > 0 and module.num_layers > 1
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        return module.running_mean is not None and module.momentum is not None
    return False


def _is_estimating(module: nn.Module) -> bool:
    """Whether a batch norm averages over all batches, as while its statistics are computed anew."""
    return isinstance(module, nn.modules.batchnorm._BatchNorm) and module.momentum is None


def _is_frozen(module: nn.Module) -> bool:
    """Whether it is a batch norm with weights that are not trained: its statistics are frozen on purpose."""
    parameters = list(module.parameters()) if isinstance(module, nn.modules.batchnorm._BatchNorm) else []
    return bool(parameters) and not any(parameter.requires_grad for parameter in parameters)


def _dropout_settings(call: FunctionCall) -> tuple[float, bool]:
    """The probability of a call, and whether it is active."""
    args, kwargs = call.args, call.kwargs
    if call.name == "scaled_dot_product_attention":
        p = args[4] if len(args) > 4 else kwargs.get("dropout_p", 0.0)
        return float(p), float(p) > 0
    p = args[1] if len(args) > 1 else kwargs.get("p", 0.5)
    training = args[2] if len(args) > 2 else kwargs.get("training", kwargs.get("train", True))
    return float(p), bool(training)
