"""An x-ray on the terminal that there is: its width, its colours, and the characters that it can show."""

import sys
from collections.abc import Sequence

from rich.text import Text

from normscope.display.console import SafeConsole
from normscope.xray.findings import Finding
from normscope.xray.record import Record
from normscope.xray.render.cells import glyphs_for
from normscope.xray.render.terminal import NARROWEST, render_rich

_WIDEST = 120


def print_record(record: Record, findings: Sequence[Finding]) -> None:
    print_text(render_rich(record, findings, width=width(), glyphs=glyphs_for(sys.stdout.encoding)))


def width() -> int:
    return max(NARROWEST, min(SafeConsole().width, _WIDEST))


def print_text(text: Text) -> None:
    """With colours on a terminal, and as plain text elsewhere."""
    if sys.stdout.isatty():
        SafeConsole(highlight=False).print(text, soft_wrap=True, end="")
    else:
        print(text.plain, end="")
