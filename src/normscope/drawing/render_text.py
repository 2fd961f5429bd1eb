"""Render a drawing as text."""

from itertools import groupby, pairwise
from operator import itemgetter
from typing import TYPE_CHECKING

from normscope.drawing.marks import Cell, Label, MarkGroup, OperatorSign, Rectangle, Wire

if TYPE_CHECKING:
    from rich.text import Text

_UP, _RIGHT, _DOWN, _LEFT = range(4)
_LINES = " ╵╶└╷│┌├╴┘─┴┐┤┬┼"  # by the sum of 1 up, 2 right, 4 down, 8 left
# The arms of cells on the stream, if not only heavy: up, right, down, left; 2 is heavy, 1 light, 0 none.
_HEAVY: dict[tuple[int, ...], str] = {
    (2, 1, 2, 0): "┠",
    (0, 1, 2, 0): "┎",
    (2, 1, 0, 0): "┖",
    (2, 1, 2, 1): "╂",
    (2, 1, 0, 1): "┸",
    (0, 1, 2, 1): "┰",
    (2, 1, 1, 1): "╀",
    (1, 1, 2, 1): "╁",
    (2, 0, 1, 0): "╿",
    (1, 0, 2, 0): "╽",
}
_STYLES = {"module": "bold", "function": "", "norm": "bold", "frame": "dim", "repeated": "dim"}
_STYLES |= {"shape": "cyan", "name": "bold", "faint": "dim", "stream": "bold blue", "join": "bold blue", "wire": "dim"}


class TextCanvas:
    """A grid of cells: the arms of the lines through each cell, the characters on top, and styles."""

    def __init__(self, group: MarkGroup) -> None:
        self.left, self.width, self.height = group.left, group.width, group.height
        self.arms = [[[0, 0, 0, 0] for _ in range(self.width)] for _ in range(self.height)]
        self.characters: dict[Cell, str] = {}
        self.styles: dict[Cell, str] = {}
        self.names = {(mark.x, mark.y) for mark in group.marks if isinstance(mark, Label) and mark.kind == "name"}
        wires = [mark for mark in group.marks if isinstance(mark, Wire)]
        for wire in wires:
            for start, end in pairwise(wire.points):
                self._span(start, end, 2 if wire.is_thick else 1)
        for mark in group.marks:
            if isinstance(mark, Rectangle):
                self._rectangle(mark)
        for wire in wires:
            if wire.has_arrowhead:
                self._head(wire)
        for mark in group.marks:
            if isinstance(mark, Label):
                self._write(mark.first_column, mark.y, mark.text, _STYLES[mark.kind])
            elif isinstance(mark, OperatorSign):
                style = _STYLES["join"] if mark.is_join else "bold"
                self._write(mark.x - 1, mark.y, f"({mark.text})", style)

    def _arm(self, x: int, y: int, side: int, weight: int) -> None:
        if 0 <= y < self.height:
            arms = self.arms[y][x + self.left]
            arms[side] = max(arms[side], weight)

    def _span(self, start: Cell, end: Cell, weight: int) -> None:
        """Draw a straight line: inner cells have two arms, the ends one."""
        (x, y), (to_x, to_y) = min(start, end), max(start, end)
        for row in range(y, to_y):
            self._arm(x, row, _DOWN, weight)
            self._arm(x, row + 1, _UP, weight)
        for column in range(x, to_x):
            self._arm(column, y, _RIGHT, weight)
            self._arm(column + 1, y, _LEFT, weight)

    def _rectangle(self, mark: Rectangle) -> None:
        right, bottom = mark.x + mark.width - 1, mark.y + mark.height - 1
        if not mark.is_frame:  # hide wires behind a box, except where they leave it below
            for row in range(mark.y, bottom + 1):
                for column in range(mark.x, right + 1):
                    arms = self.arms[row][column + self.left]
                    arms[:] = [0, 0, arms[_DOWN] if row == bottom else 0, 0]
        corners = [(mark.x, mark.y), (right, mark.y), (right, bottom), (mark.x, bottom)]
        for start, end in pairwise([*corners, corners[0]]):
            self._span(start, end, 1)
        if mark.is_frame:
            self.characters |= dict(zip(corners, "╭╮╯╰", strict=True))
            self._write(mark.axis + 2, mark.y, f" {mark.lines[0]} ", _STYLES["name"])
            return
        for number, line in enumerate(mark.lines):
            first = mark.x + (mark.width - len(line)) // 2
            self._write(first, mark.y + 1 + number, line, _STYLES[mark.kind] if number == 0 else "")

    def _head(self, wire: Wire) -> None:
        before, (x, y) = wire.points[-2][0], wire.points[-1]
        if before == x:
            # On the edge of a box; above a name, which occupies the cell itself.
            self.characters[x, y - 1 if (x, y) in self.names else y] = "▼"
        elif before > x:
            self.characters[x + 2, y] = "◀"  # beside the sign
        else:
            self.characters[x - 2, y] = "▶"

    def _write(self, x: int, y: int, text: str, style: str) -> None:
        for offset, character in enumerate(text):
            self.characters[x + offset, y] = character
            self.styles[x + offset, y] = style

    def cell(self, x: int, y: int) -> tuple[str, str]:
        """Return the character of a cell, and its style."""
        arms = self.arms[y][x]
        key = (x - self.left, y)
        heavy = 2 in arms
        if key in self.characters:
            return self.characters[key], self.styles.get(key, "bold blue" if heavy else "dim")
        if heavy:
            return _HEAVY.get(tuple(arms), "┃"), _STYLES["stream"]
        number = sum(2**side for side in range(4) if arms[side])
        return _LINES[number], _STYLES["wire"] if number else ""


def draw_text(group: MarkGroup) -> str:
    """Render as plain text."""
    canvas = TextCanvas(group)
    rows = ("".join(canvas.cell(x, y)[0] for x in range(canvas.width)).rstrip() for y in range(canvas.height))
    return "\n".join(rows)


def draw_rich(group: MarkGroup) -> "Text":
    """Render with colors, for a terminal."""
    from normscope.render.console import styled_lines  # imported on use: rich is slow

    canvas = TextCanvas(group)
    rows = ([canvas.cell(x, y) for x in range(canvas.width)] for y in range(canvas.height))
    alike = (groupby(row, key=itemgetter(1)) for row in rows)
    return styled_lines([("".join(letter for letter, _ in cells), style) for style, cells in row] for row in alike)
