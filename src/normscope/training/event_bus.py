"""Everyone who is told what happens in a run; and what the record keeps when the run goes back."""

from collections.abc import Sequence
from dataclasses import replace

from normscope.runs.events import Event, Observer, Saved
from normscope.runs.metrics import MetricsFile


class Audience:
    """The record, metrics.jsonl, and those who watch.

    Args:
        metrics: the record, which is cut when the run goes back.
        observers: the others, who remember what they saw.
    """

    def __init__(self, metrics: MetricsFile, observers: Sequence[Observer]) -> None:
        self.metrics = metrics
        self._observers = list(observers)
        self._everyone: list[Observer] = [metrics, *observers]
        self._lasting: list[Event] = []
        self.left = False
        """Whether one of the observers has nobody left to tell: the pipe that it writes to was closed."""

    def tell(self, event: Event) -> None:
        for observer in self._everyone:
            try:
                observer.see(event)
            except BrokenPipeError:
                self.left = True

    def show(self, event: Event) -> None:
        """Tell those who watch and not the record: what is true of this moment, and no part of the run."""
        for observer in self._observers:
            observer.see(event)

    def tell_for_good(self, event: Event) -> None:
        """Tell what stays true when the run goes back: that it began, what the user should know."""
        self._lasting.append(event)
        self.tell(event)

    def go_back(self, step: int, keep_bytes: int, checkpoint: str | None) -> None:
        """Cut the record to what it was when a step was saved, and add that it was, and what stays true."""
        self.metrics.cut(keep_bytes)
        if checkpoint is not None:
            self.metrics.see(Saved(step, checkpoint))
        self._lasting = [replace(event, step=min(event.step, step)) for event in self._lasting]
        for event in self._lasting:
            if event.step == step:  # those of earlier steps were not cut
                self.metrics.see(event)
