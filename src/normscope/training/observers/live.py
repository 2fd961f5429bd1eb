"""Live display of a run in a terminal."""

import time
from collections.abc import Callable

from rich.console import Console
from rich.live import Live
from rich.text import Text

from normscope.render.formatting import printable
from normscope.runs.events import FinishedEvent, NoticeEvent, RunEvent, SignalEvent, StepEvent
from normscope.training.observers.live_panel import panel
from normscope.training.observers.progress import Display

ECHO = 4
"""Columns left free beside the panel: the terminal echoes ^C at the cursor, twice if Ctrl-C is pressed twice. In a full
line that would wrap, and the next panel would be drawn one line too low."""


class LiveDisplay(Display):
    """Shows progress, losses, speed and the last sample of a run in a panel; notices are printed above it.

    The panel is drawn on events and never by a background thread, which would take time from the training.

    Args:
        console: A rich console on a terminal.
        every: Minimum time between two redraws for steps, in seconds; other events are drawn at once.
        clock: Returns the time in seconds.
    """

    def __init__(self, console: Console, every: float = 0.2, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(every, clock)
        self._console = console
        self._live = Live(console=console, auto_refresh=False, vertical_overflow="crop")

    def on_event(self, event: RunEvent) -> None:
        super().on_event(event)
        hidden = isinstance(event, NoticeEvent | SignalEvent)
        if not hidden and self._is_due(not isinstance(event, StepEvent), self._every):
            self._draw()
        if isinstance(event, FinishedEvent):
            self._live.stop()

    def on_notice(self, event: NoticeEvent) -> None:
        self._console.print(Text.assemble((f"step {event.step} ", "dim"), (printable(event.text), "yellow")))

    def close(self) -> None:
        """Stop drawing: leave the panel and restore the cursor."""
        self._live.stop()

    def _draw(self) -> None:
        if not self._live.is_started:
            self._live.start()
        width = self._console.width - ECHO
        self._live.update(panel(self._progress, width, self._console.height), refresh=True)
