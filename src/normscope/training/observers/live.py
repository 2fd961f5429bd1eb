"""A run in a terminal: a panel that stays in its place."""

import math
import time
from collections.abc import Callable

from rich.console import Console
from rich.live import Live
from rich.text import Text

from normscope.render.formatting import printable
from normscope.runs.events import FinishedEvent, NoticeEvent, RunEvent, SignalEvent, StepEvent
from normscope.training.observers.live_panel import panel
from normscope.training.observers.progress import RunProgress

ECHO = 4
"""Columns that stay free beside the panel: the terminal writes ^C where the cursor is, at its end, and twice if Ctrl-C
is pressed twice. In a full line that would begin a new one, and the next panel would be drawn one line too low."""


class LiveDisplay:
    """Shows a run as a panel: how far it is, its losses, how near the floor, its speed, its last sample.

    Notices scroll by above it, where they can still be read after the end. The panel is drawn when something happens
    and never by a thread of its own, which would take time from the training.

    Args:
        console: rich's, of a terminal.
        every: the shortest time between two drawings for a step, in seconds; what is rare is drawn at once.
        clock: seconds, from any moment on.
    """

    def __init__(self, console: Console, every: float = 0.2, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._every, self._clock = console, every, clock
        self._progress = RunProgress(clock)
        self._live = Live(console=console, auto_refresh=False, vertical_overflow="crop")
        self._next = -math.inf

    def on_event(self, event: RunEvent) -> None:
        self._progress.on_event(event)
        if isinstance(event, NoticeEvent):
            note = Text.assemble((f"step {event.step} ", "dim"), (printable(event.text), "yellow"))
            self._console.print(note)
        elif not isinstance(event, SignalEvent) and self._is_due(event):
            self._draw()
        if isinstance(event, FinishedEvent):
            self._live.stop()

    def close(self) -> None:
        """Leave the panel as it was last drawn, and give the cursor back."""
        self._live.stop()

    def _is_due(self, event: RunEvent) -> bool:
        if isinstance(event, StepEvent) and self._clock() < self._next:
            return False
        self._next = self._clock() + self._every
        return True

    def _draw(self) -> None:
        if not self._live.is_started:
            self._live.start()
        width = self._console.width - ECHO
        self._live.update(panel(self._progress, width, self._console.height), refresh=True)
