"""Print x-rays to the terminal, fitted to its width, colors and encoding."""

import sys
from collections.abc import Sequence

from rich.text import Text

from normscope.diagnostics.findings import Finding
from normscope.diagnostics.record import XrayRecord
from normscope.diagnostics.report.terminal import MIN_WIDTH, render_rich
from normscope.diagnostics.report.text_columns import glyphs_for
from normscope.render.console import SafeConsole

_MAX_WIDTH = 120


def print_record(record: XrayRecord, findings: Sequence[Finding]) -> None:
    print_text(render_rich(record, findings, width=terminal_width(), glyphs=glyphs_for(sys.stdout.encoding)))


def terminal_width() -> int:
    return max(MIN_WIDTH, min(SafeConsole().width, _MAX_WIDTH))


def print_text(text: Text) -> None:
    """Print with colors on a terminal and as plain text elsewhere."""
    if sys.stdout.isatty():
        SafeConsole(highlight=False).print(text, soft_wrap=True, end="")
    else:
        print(text.plain, end="")
