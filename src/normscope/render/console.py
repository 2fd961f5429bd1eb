"""A rich console that neutralizes control characters in untrusted text."""

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from normscope.render.formatting import printable


class SafeConsole(Console):
    """A rich console that replaces control characters in the text but keeps rich's own.

    >>> import io
    >>> file = io.StringIO()
    >>> SafeConsole(file=file, width=40).print("a name \\x1b]0;title\\x07 of a file", markup=False)
    >>> "\\x1b" in file.getvalue()
    False
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(printable(segment.text), segment.style)
