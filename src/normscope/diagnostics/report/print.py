"""An x-ray on the terminal that there is: its width, its colours, and the characters that it can show."""

import sys
from collections.abc import Sequence

from rich.text import Text

from normscope.diagnostics.findings import Finding
from normscope.diagnostics.record import XrayRecord
from normscope.diagnostics.report.terminal import NARROWEST, render_rich
from normscope.diagnostics.report.text_columns import glyphs_for
from normscope.render.console import SafeConsole

_WIDEST = 120


def print_record(record: XrayRecord, findings: Sequence[Finding]) -> None:
    print_text(render_rich(record, findings, width=width(), glyphs=glyphs_for(sys.stdout.encoding)))


def width() -> int:
    return max(NARROWEST, min(SafeConsole().width, _WIDEST))


def print_text(text: Text) -> None:
    """With colours on a terminal, and as plain text elsewhere."""
    if sys.stdout.isatty():
        SafeConsole(highlight=False).print(text, soft_wrap=True, end="")
    else:
        print(text.plain, end="")
