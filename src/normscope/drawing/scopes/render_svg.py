"""Render a scope as an SVG image: boxes of colored cells, laid out as in a terminal."""

import textwrap
from dataclasses import dataclass, field

from normscope.drawing.scopes.statistic_map import CellGrid, GridRow, StatisticMap
from normscope.render.svg import element, palette_color, svg_document, text

EDGE = 24  # the margin
LINE = 20  # line height
CHARACTER = 7.4  # approximate width of a character
WIDTH = 760


def render_scope(statistic_map: StatisticMap) -> str:
    """Return the SVG document."""
    image = _ScopeSvg(statistic_map)
    image.add_text(statistic_map.scope, "ink code title")
    image.add_text(statistic_map.heading, "faint")
    for line in statistic_map.legend:
        image.add_text(line, "ink")
    for band in statistic_map.bands:
        image.add_row(band)
    described = f"{statistic_map.heading}. {' '.join(statistic_map.legend)}"
    title = f"The scope {statistic_map.scope}"
    return svg_document(image.right + EDGE, image.y + EDGE / 2, title, described, image.body)


@dataclass
class _ScopeSvg:
    """The document so far, and the position of the next element."""

    statistic_map: StatisticMap
    body: list[str] = field(default_factory=list)
    y: float = EDGE
    right: float = 0

    def __post_init__(self) -> None:
        self.letters = self.statistic_map.letters
        self.cell = 24 if not self.letters else 14 + 8 * len(self.letters[0])
        labels = [len(band.label) for band in self.statistic_map.bands]
        self.margin = EDGE + (CHARACTER * max(labels) + 14 if any(labels) else 0)

    def add_text(self, line: str, kind: str) -> None:
        for part in textwrap.wrap(line, 88):
            self.body.append(text(EDGE, self.y + 12, part, kind))
            self.right = max(self.right, EDGE + CHARACTER * len(part))
            self.y += LINE

    def add_row(self, band: GridRow) -> None:
        x, top = self.margin, self.y + 8
        for i, box in enumerate(band.boxes):
            cells = len(box.rows[0]) * self.cell + (16 if self.statistic_map.columns_are_cut else 0)
            width = max(cells, CHARACTER * len(box.label))
            if i and x + width > WIDTH:
                x, top = self.margin, self.y + 8
            bottom = self._box(box, x, top)
            if i == 0 and band.label:
                below_label = top + (LINE if box.label else 0)
                self.body.append(text(EDGE, below_label + self.cell / 2 + 5, band.label, "ink code"))
            self.right = max(self.right, x + width)
            x += width + 18
            self.y = bottom

    def _box(self, box: CellGrid, x: float, y: float) -> float:
        """Draw one box. Returns its bottom."""
        if box.label:
            self.body.append(text(x, y + 11, box.label, "ink code"))
            y += LINE
        for row in box.rows:
            for i, statistic in enumerate(row):
                left, fill = x + i * self.cell, palette_color(statistic)
                cell = {"x": f"{left:g}", "y": f"{y:g}", "width": self.cell, "height": self.cell, "fill": fill}
                self.body.append(element("rect", class_="cell", **cell))
                self.body.append(text(left + self.cell / 2, y + self.cell / 2 + 4.5, self.letters[statistic], "letter"))
            if self.statistic_map.columns_are_cut:
                self.body.append(text(x + len(row) * self.cell + 5, y + self.cell / 2 + 4, "…", "faint"))
            y += self.cell
        if self.statistic_map.rows_are_cut:
            self.body.append(text(x + self.cell / 2, y + 14, "⋮", "faint middle"))
            y += 18
        return y + 10
