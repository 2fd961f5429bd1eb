"""Draw a scope as text or SVG: which cells of a tensor share one mean."""

import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from normscope.drawing.scopes import render_svg
from normscope.drawing.scopes.statistic_map import CellGrid, StatisticMap, measure
from normscope.render.svg import palette_color
from normscope.scope import Scope

if TYPE_CHECKING:
    from rich.text import Text

WIDTH = 80
GAP = "   "  # between two boxes

TextSpan = tuple[str, int | None]
"""A part of a line, and the index of its statistic, if any."""

TextLine = list[TextSpan]


def draw_scope(scope: str | Scope, shape: Sequence[int], /, **sizes: int) -> str:
    """Draw which cells of a tensor of this shape share one mean.

    >>> print(draw_scope("n (g [c]) w", (2, 4, 3), g=2))
    n (g [c]) w
    shape 2 × 4 × 3, read as n=2 g=2 c=2 w=3
    <BLANKLINE>
    12 means, each over 2 values. Cells with the same letter share one mean.
    In each box: c down, w across.
    <BLANKLINE>
         g=0         g=1
    n=0  ┌───────┐   ┌───────┐
         │ a b c │   │ d e f │
         │ a b c │   │ d e f │
         └───────┘   └───────┘
    <BLANKLINE>
         g=0         g=1
    n=1  ┌───────┐   ┌───────┐
         │ g h i │   │ j k l │
         │ g h i │   │ j k l │
         └───────┘   └───────┘
    """
    lines = _lines(measure(scope, shape, sizes))
    return "\n".join("".join(text for text, _ in line).rstrip() for line in lines)


def draw_rich(scope: str | Scope, shape: Sequence[int], /, **sizes: int) -> "Text":
    """Draw a scope for a terminal with colors: one color and letter for each mean."""
    from normscope.render.console import styled_lines  # imported on use: rich is slow

    def style(statistic: int | None) -> str:
        return "" if statistic is None else f"#000000 on {palette_color(statistic)}"

    lines = _lines(measure(scope, shape, sizes))
    return styled_lines([(text, style(statistic)) for text, statistic in line] for line in lines)


def draw_svg(scope: str | Scope, shape: Sequence[int], /, **sizes: int) -> str:
    """Draw a scope as a self-contained SVG image, for light and dark pages."""
    return render_svg.render_scope(measure(scope, shape, sizes))


def _lines(statistic_map: StatisticMap) -> Iterator[TextLine]:
    for paragraph in (statistic_map.scope, statistic_map.heading, "", *statistic_map.legend):
        for words in textwrap.wrap(paragraph, WIDTH) or [""]:
            yield [(words, None)]
    margin = max((len(band.label) for band in statistic_map.bands), default=0)
    margin += 2 if margin else 0
    for band in statistic_map.bands:
        blocks = [list(_box(box, statistic_map)) for box in band.boxes]
        widest = max(len("".join(text for text, _ in block[0])) for block in blocks) + len(GAP)
        count = max(1, (WIDTH - margin + len(GAP)) // widest)
        for start in range(0, len(blocks), count):  # as many boxes side by side as fit
            yield [("", None)]
            for number, parts in enumerate(zip(*blocks[start : start + count], strict=True)):
                # The label of a row is beside the upper edge of its boxes, below the labels of the boxes.
                labelled = number == (1 if band.boxes[start].label else 0)
                line: TextLine = [(f"{band.label if labelled else '':{margin}}", None)]
                for i, part in enumerate(parts):
                    line += [(GAP, None)] * (i > 0) + part
                yield line


def _box(box: CellGrid, statistic_map: StatisticMap) -> Iterator[TextLine]:
    letters = statistic_map.letters
    inner = len(box.rows[0]) * (len(letters[0]) + 1) + 2 * statistic_map.columns_are_cut + 1
    width = max(len(box.label), inner + 2)
    spare = " " * (width - inner - 2)
    if box.label:
        yield [(f"{box.label:{width}}", None)]
    yield [(f"┌{'─' * inner}┐{spare}", None)]
    for row in box.rows:
        line: TextLine = [("│", None)]
        for i, statistic in enumerate(row):
            # The blank between two cells of one mean carries its palette_color too, so that the area reads as one.
            same = i > 0 and row[i - 1] == statistic
            line += [(" ", statistic if same else None), (letters[statistic], statistic)]
        yield [*line, (f"{' …' if statistic_map.columns_are_cut else ''} │{spare}", None)]
    if statistic_map.rows_are_cut:
        yield [(f"│ {'⋮':{inner - 1}}│{spare}", None)]
    yield [(f"└{'─' * inner}┘{spare}", None)]
