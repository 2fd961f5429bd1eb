"""Show text as it is generated, and a progress bar while text is read."""

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from normscope.render.formatting import printable
from normscope.render.word_wrap import WordWrap


class StreamDisplay:
    """Print streamed text: wrapped at word boundaries on a terminal, unchanged to a file or pipe."""

    def __init__(self) -> None:
        self._wrap = WordWrap(shutil.get_terminal_size().columns) if sys.stdout.isatty() else None

    def show(self, piece: str) -> None:
        text = without_control_characters(piece)
        print(text if self._wrap is None else self._wrap.feed(text), end="", flush=True)

    def end(self) -> None:
        """Print the text held back for word wrapping, and end the line."""
        print("" if self._wrap is None else self._wrap.flush(), flush=True)


def print_text(text: str) -> None:
    """Print a complete text."""
    display = StreamDisplay()
    display.show(text)
    display.end()


def without_control_characters(text: str) -> str:
    """Generated text, with control characters replaced if it goes to a terminal."""
    return printable(text, keep="\n\t") if sys.stdout.isatty() else text


@contextmanager
def reading_progress(quiet: bool = False) -> Iterator[Callable[[int, int], None] | None]:
    """Show a progress bar of the bytes read, on a terminal."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    from normscope.render.console import SafeConsole

    columns = (TextColumn("reading text"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=SafeConsole(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
