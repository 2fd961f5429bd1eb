"""A rich console that neutralizes control characters in untrusted text."""

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

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


def styled_lines(lines: Iterable[Iterable[tuple[str, str]]]) -> Text:
    """Join lines, each of pieces of text with their styles, without spaces at their ends.

    >>> styled_lines([[("a", "bold"), ("b ", "")], [("c", "dim")]])
    <text 'ab\\nc' [Span(0, 1, 'bold'), Span(3, 4, 'dim')] ''>
    """
    joined = [Text.assemble(*line) for line in lines]
    for text in joined:
        text.rstrip()
    return Text("\n", no_wrap=True).join(joined)
