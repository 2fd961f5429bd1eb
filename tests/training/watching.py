"""An observer that records events, and the metrics of a run without times."""

from typing import Any

from normscope.runs.events import RunEvent
from normscope.runs.metrics_file import event_to_json, read_metrics
from normscope.runs.run import Run

_TIMES = ("seconds", "tokens_per_second", "when")


class Recorder:
    """Observer that records every event."""

    def __init__(self) -> None:
        self.events: list[RunEvent] = []
        self.closed = 0

    def on_event(self, event: RunEvent) -> None:
        self.events.append(event)

    def close(self) -> None:
        self.closed += 1

    def kinds(self) -> list[tuple[str, int]]:
        return [(event.kind, event.step) for event in self.events]

    def of(self, kind: type[RunEvent]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def lines(self) -> list[dict[str, Any]]:
        """The events as metrics.jsonl should hold them."""
        return [event_to_json(event) for event in self.events]


def story(run: Run) -> list[dict[str, Any]]:
    """The metrics of a run without times: the same whether or not it was interrupted."""
    kinds = ("step", "validation", "sample", "signal")
    return [
        {name: value for name, value in event.items() if name not in _TIMES}
        for event in read_metrics(run.metrics)
        if event["kind"] in kinds
    ]
