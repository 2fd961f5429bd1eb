"""Send the events of a run to metrics.jsonl and to its observers."""

from collections.abc import Sequence

from msgspec.structs import replace

from normscope.runs.events import CheckpointEvent, Observer, RunEvent
from normscope.runs.metrics_file import MetricsFile


class EventBus:
    """Sends each event to metrics.jsonl and to all observers.

    Args:
        metrics: The metrics file; truncated on a rollback.
        observers: Displays and trackers.
    """

    def __init__(self, metrics: MetricsFile, observers: Sequence[Observer]) -> None:
        self.metrics = metrics
        self._observers = list(observers)
        self._lasting: list[RunEvent] = []
        self.disconnected = False
        """Whether an observer's output pipe was closed."""

    def emit(self, event: RunEvent) -> None:
        for observer in (self.metrics, *self._observers):
            try:
                observer.on_event(event)
            except BrokenPipeError:
                self.disconnected = True

    def emit_to_observers(self, event: RunEvent) -> None:
        """Send an event to the observers only: it describes the moment and isn't part of the run's history."""
        for observer in self._observers:
            observer.on_event(event)

    def emit_lasting(self, event: RunEvent) -> None:
        """Send an event that a rollback must keep in metrics.jsonl, such as a start or a notice."""
        self._lasting.append(event)
        self.emit(event)

    def roll_back(self, step: int, keep_bytes: int, checkpoint: str | None) -> None:
        """Truncate metrics.jsonl to its size at a checkpoint, then rewrite that checkpoint's and all lasting events."""
        self.metrics.truncate(keep_bytes)
        if checkpoint is not None:
            self.metrics.on_event(CheckpointEvent(step, checkpoint))
        self._lasting = [replace(event, step=min(event.step, step)) for event in self._lasting]
        for event in self._lasting:
            if event.step == step:  # earlier ones were not truncated
                self.metrics.on_event(event)
