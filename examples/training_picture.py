"""The picture of the README: the display of the default run, shortly before its end.

.venv/bin/python examples/training_picture.py docs/images/training.svg
"""

import io
import re
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI

from normscope.runs.events import RunEvent, StartedEvent, StepEvent
from normscope.storage.files import write_atomically
from normscope.training.loop import train_run
from normscope.training.observers.live_panel import panel
from normscope.training.observers.progress import RunProgress
from normscope.training.recipes import recipe
from normscope.training.start_run import start_run

WIDTH, HEIGHT = 100, 40
SHARE = 0.97
"""How far the run is in the picture."""


class Photographer:
    """Watches a run and draws its display once."""

    def __init__(self) -> None:
        self.picture = ""
        self._progress = RunProgress()

    def on_event(self, event: RunEvent) -> None:
        if isinstance(event, StartedEvent):
            event = StartedEvent(**{**vars(event), "folder": "runs/stories"})
        self._progress.on_event(event)
        if isinstance(event, StepEvent) and not self.picture and event.step >= SHARE * self._progress.steps:
            console = Console(record=True, width=WIDTH, height=HEIGHT, file=io.StringIO(), force_terminal=True)
            console.print(panel(self._progress, WIDTH, HEIGHT))
            self.picture = console.export_svg(title="normscope train", theme=DIMMED_MONOKAI)

    def close(self) -> None:
        pass


def main(target: Path) -> None:
    photographer = Photographer()
    with tempfile.TemporaryDirectory() as folder:
        train_run(start_run(folder, [], recipe("dial")), [photographer])
    # Nothing is fetched to show the picture: a typeface of the reader's own does.
    write_atomically(target, re.sub(r"@font-face \{.*?\n    \}\n", "", photographer.picture, flags=re.DOTALL))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
