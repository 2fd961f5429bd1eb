"""A scope as flat boxes of coloured cells: the layout of the terminal, as an SVG image."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field

from normscope.drawing.scopes.statistic_map import CellGrid, GridRow, StatisticMap
from normscope.render.colors import palette_color
from normscope.render.svg import svg_document, text

EDGE = 24  # the free space around everything
LINE = 20  # the height of a line of text
CHARACTER = 7.4  # the width of a character of the labels, near enough to place boxes
WIDTH = 760


def render_scope(drawn: StatisticMap) -> str:
    """The SVG document."""
    sheet = _ScopeSvg(drawn)
    sheet.words(drawn.scope, "ink code title")
    sheet.words(drawn.heading, "faint")
    for line in drawn.legend:
        sheet.words(line, "ink")
    for band in drawn.bands:
        sheet.band(band)
    title = f"The scope {drawn.scope}"
    return svg_document(
        sheet.right + EDGE, sheet.y + EDGE / 2, title, f"{drawn.heading}. {' '.join(drawn.legend)}", sheet.body
    )


@dataclass
class _ScopeSvg:
    """What is drawn so far, and where the next thing goes."""

    drawn: StatisticMap
    body: list[str] = field(default_factory=list)
    y: float = EDGE
    right: float = 0

    def __post_init__(self) -> None:
        self.letters = self.drawn.letters
        self.cell = 24 if not self.letters else 14 + 8 * len(self.letters[0])
        labels = [len(band.label) for band in self.drawn.bands]
        self.margin = EDGE + (CHARACTER * max(labels) + 14 if any(labels) else 0)

    def words(self, line: str, kind: str) -> None:
        for part in textwrap.wrap(line, 88):
            self.body.append(text(EDGE, self.y + 12, part, kind))
            self.right = max(self.right, EDGE + CHARACTER * len(part))
            self.y += LINE

    def band(self, band: GridRow) -> None:
        x, top = self.margin, self.y + 8
        for i, box in enumerate(band.boxes):
            width = max(self._width(box), CHARACTER * len(box.label))
            if i and x + width > WIDTH:
                x, top = self.margin, self.y + 8
            bottom = self._box(box, x, top)
            if i == 0 and band.label:
                below_label = top + (LINE if box.label else 0)
                self.body.append(text(EDGE, below_label + self.cell / 2 + 5, band.label, "ink code"))
            self.right = max(self.right, x + width)
            x += width + 18
            self.y = bottom

    def _width(self, box: CellGrid) -> float:
        return len(box.rows[0]) * self.cell + (16 if self.drawn.columns_are_cut else 0)

    def _box(self, box: CellGrid, x: float, y: float) -> float:
        """Draw one box; returns where it ends."""
        if box.label:
            self.body.append(text(x, y + 11, box.label, "ink code"))
            y += LINE
        for row in box.rows:
            self._row(row, x, y)
            y += self.cell
        if self.drawn.rows_are_cut:
            self.body.append(text(x + self.cell / 2, y + 14, "⋮", "faint middle"))
            y += 18
        return y + 10

    def _row(self, row: Sequence[int], x: float, y: float) -> None:
        for i, statistic in enumerate(row):
            left = x + i * self.cell
            self.body.append(
                f'<rect class="cell" x="{left:g}" y="{y:g}" width="{self.cell}" height="{self.cell}" '
                f'fill="{palette_color(statistic)}"/>'
            )
            self.body.append(text(left + self.cell / 2, y + self.cell / 2 + 4.5, self.letters[statistic], "letter"))
        if self.drawn.columns_are_cut:
            self.body.append(text(x + len(row) * self.cell + 5, y + self.cell / 2 + 4, "…", "faint"))
