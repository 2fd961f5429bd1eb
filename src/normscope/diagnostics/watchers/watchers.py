"""All watchers of an x-ray, and how events reach them."""

import threading
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch

from normscope.diagnostics.collect.session import CallFrame
from normscope.diagnostics.watchers.attention_use.watcher import AttentionUseWatcher
from normscope.diagnostics.watchers.copies import CopyWatcher
from normscope.diagnostics.watchers.dependence.watcher import DependenceWatcher
from normscope.diagnostics.watchers.graph.watcher import GraphWatcher
from normscope.diagnostics.watchers.hints import HintWatcher
from normscope.diagnostics.watchers.inputs import InputsWatcher
from normscope.diagnostics.watchers.losses.watcher import LossWatcher
from normscope.diagnostics.watchers.modes import ModeWatcher
from normscope.diagnostics.watchers.non_finite import NonFiniteWatcher
from normscope.diagnostics.watchers.optimizers.watcher import OptimizerWatcher
from normscope.diagnostics.watchers.periodic import PeriodicWatcher
from normscope.diagnostics.watchers.structure import StructureWatcher
from normscope.diagnostics.watchers.training_calls import listening
from normscope.diagnostics.watchers.watcher import Watched, Watcher
from normscope.tracing.tracer import FunctionCall

WATCHERS: tuple[type[Watcher], ...] = (
    GraphWatcher,
    NonFiniteWatcher,
    PeriodicWatcher,
    OptimizerWatcher,
    ModeWatcher,
    CopyWatcher,
    LossWatcher,
    DependenceWatcher,
    AttentionUseWatcher,
    StructureWatcher,
    InputsWatcher,
    HintWatcher,
)


class Watchers:
    """The watchers of one x-ray. Each event goes only to those that override its method.

    Args:
        watched: what they watch.
        kinds: their classes.
    """

    def __init__(self, watched: Watched, kinds: Sequence[type[Watcher]] = WATCHERS) -> None:
        self._session, self._parameters, self._names = watched.session, watched.parameters, watched.names
        self._all = [kind(watched) for kind in kinds]
        self._by_event = {
            event: [getattr(watcher, event) for watcher in self._all if _overrides(watcher, event)]
            for event, method in vars(Watcher).items()
            if callable(method)
        }
        self._by_function: dict[str, list[Any]] = defaultdict(list)
        self._of_every_function = [w.call_function for w in self._all if w.functions is None]
        for watcher in self._all:
            for name in watcher.functions or ():
                self._by_function[name].append(watcher.call_function)
        self._stack = ExitStack()
        self._is_stepping = False
        """Whether an optimizer steps: its arithmetic is none of the training loop. A closure calls the model again."""

    def start(self) -> None:
        self._tell("start")
        self._stack.enter_context(listening(self._hear))
        self._parameters.before_step.append(lambda optimizer: self._hear("before_step", optimizer))
        self._parameters.after_any_step.append(lambda optimizer: self._hear("after_step", optimizer))

    def enter_module(self, frame: CallFrame, args: Any, kwargs: Any, outer: Sequence[CallFrame]) -> None:
        self._is_stepping = False
        self._tell("enter_module", frame, args, kwargs, outer)

    def exit_module(self, frame: CallFrame, output: Any) -> None:
        self._tell("exit_module", frame, output)

    def call_function(self, call: FunctionCall, result: Any) -> None:
        is_update = self._is_stepping and not torch.is_grad_enabled()  # otherwise the optimizer runs a closure
        interested, others = self._by_function.get(call.name), () if is_update else self._of_every_function
        for watch in (*interested, *others) if interested else others:
            self._session.guarded(f"`{call.name}()`", watch, call, result)

    def fail_function(self, call: FunctionCall) -> None:
        self._tell("fail_function", call)

    def stop(self) -> None:
        self._stack.close()
        self._tell("stop")

    def finish(self) -> dict[str, Any]:
        """The fields of the record that watchers fill."""
        found: dict[str, Any] = {}
        for finish in self._by_event["finish"]:
            found |= self._session.guarded("the end of the block", finish) or {}
        return found

    def _hear(self, event: str, *args: Any) -> None:
        if not self._session.is_active or threading.get_ident() != self._session.thread:
            return
        if event in ("before_step", "after_step"):  # an optimizer calls hundreds of functions
            self._is_stepping = event == "before_step"
        if event == "call_outside_module" and (type(args[0]).__hash__ is None or args[0] in self._names):
            return
        self._tell(event, *args)

    def _tell(self, event: str, *args: Any) -> None:
        for watch in self._by_event[event]:
            self._session.guarded(f"`{event}`", watch, *args)


def _overrides(watcher: Watcher, event: str) -> bool:
    return getattr(type(watcher), event) is not getattr(Watcher, event)
