"""Render the README's image of the live display, shortly before the end of the default run.

.venv/bin/python examples/training_image.py docs/images/training.svg [RUN]

RUN is a new folder to keep the run in. `make images` makes the other images from it too.
"""

import io
import re
import sys
import tempfile
from pathlib import Path

import msgspec
from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI

from normscope.runs.events import RunEvent, StartedEvent, StepEvent
from normscope.storage.files import write_atomically
from normscope.training.create_run import create_run
from normscope.training.loop import train_run
from normscope.training.observers.live import panel
from normscope.training.observers.progress import RunProgress
from normscope.training.recipes import recipe

WIDTH, HEIGHT = 100, 40
FRACTION = 0.97
"""Fraction of the run at which the image is rendered."""


class PanelRecorder:
    """Observer that renders the live panel once, as SVG."""

    def __init__(self) -> None:
        self.svg = ""
        self._progress = RunProgress()

    def on_event(self, event: RunEvent) -> None:
        if isinstance(event, StartedEvent):
            event = msgspec.structs.replace(event, folder="runs/stories")
        self._progress.on_event(event)
        if isinstance(event, StepEvent) and not self.svg and event.step >= FRACTION * self._progress.steps:
            console = Console(record=True, width=WIDTH, height=HEIGHT, file=io.StringIO(), force_terminal=True)
            console.print(panel(self._progress, WIDTH, HEIGHT))
            self.svg = console.export_svg(title="normscope train", theme=DIMMED_MONOKAI)

    def close(self) -> None:
        pass


def main(target: Path, run: Path | None = None) -> None:
    recorder = PanelRecorder()
    with tempfile.TemporaryDirectory() as folder:
        train_run(create_run(run or folder, [], recipe("dial")), [recorder])
    # Remove web fonts: the image must not load anything.
    write_atomically(target, re.sub(r"@font-face \{.*?\n    \}\n", "", recorder.svg, flags=re.DOTALL))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
