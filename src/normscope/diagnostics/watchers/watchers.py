"""All watchers of an x-ray, and how events reach them."""

import threading
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from normscope.diagnostics.collect.session import CallFrame
from normscope.diagnostics.watchers.hints import HintWatcher
from normscope.diagnostics.watchers.training_calls import listening
from normscope.diagnostics.watchers.watcher import Watched, Watcher
from normscope.tracing.tracer import FunctionCall

WATCHERS: tuple[type[Watcher], ...] = (HintWatcher,)


class Watchers:
    """The watchers of one x-ray. Each event goes only to those that override its method.

    Args:
        watched: what they watch.
        kinds: their classes.
    """

    def __init__(self, watched: Watched, kinds: Sequence[type[Watcher]] = WATCHERS) -> None:
        self._session, self._parameters = watched.session, watched.parameters
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

    def start(self) -> None:
        self._tell("start")
        self._stack.enter_context(listening(self._hear))
        self._parameters.before_step.append(lambda optimizer: self._hear("before_step", optimizer))
        self._parameters.after_any_step.append(lambda optimizer: self._hear("after_step", optimizer))

    def enter_module(self, frame: CallFrame, args: Any, kwargs: Any, outer: Sequence[CallFrame]) -> None:
        self._tell("enter_module", frame, args, kwargs, outer)

    def exit_module(self, frame: CallFrame, output: Any) -> None:
        self._tell("exit_module", frame, output)

    def call_function(self, call: FunctionCall, result: Any) -> None:
        interested = self._by_function.get(call.name)
        for watch in (*interested, *self._of_every_function) if interested else self._of_every_function:
            self._session.guarded(f"`{call.name}()`", watch, call, result)

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
        if self._session.is_active and threading.get_ident() == self._session.thread:
            self._tell(event, *args)

    def _tell(self, event: str, *args: Any) -> None:
        for watch in self._by_event[event]:
            self._session.guarded(f"`{event}`", watch, *args)


def _overrides(watcher: Watcher, event: str) -> bool:
    return getattr(type(watcher), event) is not getattr(Watcher, event)
