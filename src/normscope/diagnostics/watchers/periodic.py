"""Find the modules whose outputs are angles, as in Fourier features: large weights are high frequencies there."""

from typing import Any

from normscope.diagnostics.collect.tensors import is_measurable
from normscope.diagnostics.watchers.watcher import Watched, Watcher
from normscope.tracing.tracer import FunctionCall


class PeriodicWatcher(Watcher):
    """Remember the producers of the arguments of sin and cos."""

    functions = ("sin", "cos")

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._names: dict[str, None] = {}

    def call_function(self, call: FunctionCall, result: Any) -> None:
        for tensor in call.args[:1]:
            if is_measurable(tensor):
                entry = self.session.registry.of(tensor)
                self._names.update(dict.fromkeys(entry.producers or entry.scaled_from))

    def finish(self) -> dict[str, Any]:
        return {"read_by_sine": tuple(self._names)}
