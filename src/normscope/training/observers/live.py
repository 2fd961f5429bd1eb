"""Live display of a run in a terminal."""

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
"""Columns left free beside the panel: the terminal echoes ^C at the cursor, twice if Ctrl-C is pressed twice. In a full
line that would wrap, and the next panel would be drawn one line too low."""


class LiveDisplay:
    """Shows progress, losses, speed and the last sample of a run in a panel; notices are printed above it.

    The panel is drawn on events and never by a background thread, which would take time from the training.

    Args:
        console: A rich console on a terminal.
        every: Minimum time between two redraws for steps, in seconds; other events are drawn at once.
        clock: Returns the time in seconds.
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
        """Stop drawing: leave the panel and restore the cursor."""
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
