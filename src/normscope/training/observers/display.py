"""Which display fits where a run is watched."""

from typing import TextIO

from normscope.runs.events import Observer
from normscope.training.observers.log_lines import LogLines


def choose_display(stream: TextIO) -> Observer:
    """Live on a terminal, lines anywhere else: in a file, a pipe, or a terminal that cannot draw.

    >>> import io
    >>> type(choose_display(io.StringIO())).__name__
    'PlainLines'
    """
    if not stream.isatty():
        return LogLines(stream)
    from normscope.render.console import SafeConsole
    from normscope.training.observers.live import LiveDisplay

    console = SafeConsole(file=stream)
    can_draw = not console.is_dumb_terminal and console.encoding.startswith("utf")
    return LiveDisplay(console) if can_draw else LogLines(stream)
