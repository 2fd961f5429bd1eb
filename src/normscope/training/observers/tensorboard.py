"""A run for TensorBoard."""

import textwrap
from pathlib import Path
from typing import Any

from normscope.runs.events import RunEvent, SampleEvent, StartedEvent
from normscope.training.observers.tracker_metrics import import_tracker, tracked_metrics


class TensorBoard:
    """Writes steps, validations and samples where `tensorboard --logdir` finds them.

    A run that goes on from a checkpoint, or goes back to one, does so here too: what was written of later steps is
    hidden.

    Args:
        folder: for TensorBoard's files; made if it is not there.
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
            # Four spaces make it a block of code, in which nothing is taken for Markdown.
            self._writer.add_text("sample", textwrap.indent(event.prompt + event.text, "    "), event.step)

    def _open(self, step: int) -> None:
        self.close()
        # The step itself is not taken again. What is due there is, and comes to the same numbers twice.
        self._writer = self._writers.SummaryWriter(str(self._folder), purge_step=step + 1)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
