"""Choose the display for a stream."""

from typing import TextIO

from normscope.runs.events import Observer
from normscope.training.observers.log_lines import LogLines


def choose_display(stream: TextIO) -> Observer:
    """A live display on a terminal; log lines for files, pipes and terminals without cursor control.

    >>> import io
    >>> type(choose_display(io.StringIO())).__name__
    'LogLines'
    """
    if not stream.isatty():
        return LogLines(stream)
    from normscope.render.console import SafeConsole
    from normscope.training.observers.live import LiveDisplay

    console = SafeConsole(file=stream)
    can_draw = not console.is_dumb_terminal and console.encoding.startswith("utf")
    return LiveDisplay(console) if can_draw else LogLines(stream)
