"""Log a run to TensorBoard."""

import textwrap
from pathlib import Path
from typing import Any

from normscope.runs.events import Observer, RunEvent, SampleEvent, StartedEvent
from normscope.training.observers.tracker_metrics import import_tracker, tracked_metrics


class TensorBoard(Observer):
    """Observer that logs steps, validations and samples to TensorBoard.

    After a resume or rollback, later steps written before are purged.

    Args:
        folder: Log directory; created if necessary.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        self._writers = import_tracker("torch.utils.tensorboard", "tensorboard")
        self._writer: Any = None
        self._step = 0

    def on_event(self, event: RunEvent) -> None:
        if isinstance(event, StartedEvent) or event.step < self._step or self._writer is None:
            self._open(event.step)
        self._step = event.step
        for name, value in tracked_metrics(event).items():
            self._writer.add_scalar(name, value, event.step)
        if isinstance(event, SampleEvent):
            # Indented by four spaces, it is a Markdown code block.
            self._writer.add_text("sample", textwrap.indent(event.prompt + event.text, "    "), event.step)

    def _open(self, step: int) -> None:
        self.close()
        # The step itself is not repeated. Validation and samples after it are, with the same results.
        self._writer = self._writers.SummaryWriter(str(self._folder), purge_step=step + 1)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
