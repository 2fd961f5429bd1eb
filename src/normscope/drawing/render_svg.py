"""Render a drawing as an SVG image."""

from collections.abc import Iterator

from normscope.drawing.marks import Label, Mark, MarkGroup, OperatorSign, Rectangle, Wire
from normscope.render.svg import element, read_asset, svg_document, text

EDGE = 28  # the margin
ACROSS, DOWN = 8.2, 19.0  # the size of a cell
CORNER_RADIUS = 7.0  # of wires
TITLE, NOTE = 9.2, 7.8  # the width of a character above the drawing


def draw_svg(group: MarkGroup, title: str, *notes: str, name_modules: bool = False) -> str:
    """Return the SVG document; with `name_modules`, the boxes of modules have an attribute `data-module`."""
    canvas = _SvgCanvas(group, EDGE + 26 + 18 * len(notes), name_modules)
    body = [element("style", f"\n{read_asset('drawing/diagram.css')}"), text(EDGE, EDGE + 8, title, "ink title")]
    body += [text(EDGE, EDGE + 27 + 18 * i, note, "faint") for i, note in enumerate(notes)]
    body += canvas.body()
    # At least as wide as the text, in the widest font that a browser may choose.
    widest = max(TITLE * len(title), *(NOTE * len(note) for note in notes), 0.0)
    width = max(canvas.width, widest + 2 * EDGE)
    boxes = [f"{', '.join(mark.lines)}." for mark in group.marks if isinstance(mark, Rectangle)]
    described = " ".join((f"{title}.", *boxes))
    return svg_document(round(width), round(canvas.height), title, described, body)


class _SvgCanvas:
    def __init__(self, group: MarkGroup, top: float, name_modules: bool) -> None:
        self.group, self.top, self.name_modules = group, top, name_modules
        self.names = {(mark.x, mark.y) for mark in group.marks if isinstance(mark, Label) and mark.kind == "name"}
        self.width = group.width * ACROSS + 2 * EDGE
        self.height = group.height * DOWN + top + EDGE / 2

    def x(self, column: float) -> float:
        """Return the center of a column."""
        return round(EDGE + (column + self.group.left + 0.5) * ACROSS, 2)

    def y(self, row: float) -> float:
        """Return the center of a row."""
        return round(self.top + (row + 0.5) * DOWN, 2)

    def body(self) -> Iterator[str]:
        """Yield frames first (they are at the back), then wires, boxes, signs and labels."""
        rectangles = [mark for mark in self.group.marks if isinstance(mark, Rectangle)]
        wires = [mark for mark in self.group.marks if isinstance(mark, Wire)]
        for mark in rectangles:
            if mark.is_frame:
                yield from self._frame(mark)
        yield from map(self._wire, sorted(wires, key=lambda wire: wire.is_thick))
        for mark in rectangles:
            if not mark.is_frame:
                yield from self._box(mark)
        yield from (self._head(wire) for wire in wires if wire.has_arrowhead)
        for rest in self.group.marks:
            yield from self._text(rest)

    def _frame(self, mark: Rectangle) -> Iterator[str]:
        yield self._rect(mark, 10)
        x, y = self.x(mark.axis + 2), self.y(mark.y)
        width = f"{5.9 * len(mark.lines[0]) + 14:.4g}"
        yield element("rect", class_="behind", x=f"{x:g}", y=f"{y - 8:g}", width=width, height=16)
        yield text(self.x(mark.axis + 3), self.y(mark.y) + 4, mark.lines[0], "ink small")

    def _rect(self, mark: Rectangle, corner: int) -> str:
        x, y = self.x(mark.x), self.y(mark.y)
        size = {"width": self.x(mark.x + mark.width - 1) - x, "height": self.y(mark.y + mark.height - 1) - y}
        sides = {name: f"{value:.4g}" for name, value in size.items()}
        module = mark.module if self.name_modules else None
        return element("rect", class_=mark.kind, x=f"{x:g}", y=f"{y:g}", **sides, rx=corner, data_module=module)

    def _box(self, mark: Rectangle) -> Iterator[str]:
        yield self._rect(mark, 6)
        middle = self.x(mark.x + (mark.width - 1) / 2)
        for number, line in enumerate(mark.lines):
            kind = "ink middle" if number == 0 else "faint small middle"
            yield text(middle, self.y(mark.y + 1 + number) + 4.5, line, kind)

    def _wire(self, wire: Wire) -> str:
        points = self._points(wire)
        path = f"M{points[0][0]:g} {points[0][1]:g}"
        for before, corner, after in zip(points, points[1:], points[2:], strict=False):
            one, other = _towards(corner, before, CORNER_RADIUS), _towards(corner, after, CORNER_RADIUS)
            path += f"L{one[0]:g} {one[1]:g}Q{corner[0]:g} {corner[1]:g} {other[0]:g} {other[1]:g}"
        x, y = points[-1]
        y -= 8 if wire.is_thick and wire.has_arrowhead else 0  # a thick line would show beside its arrowhead
        path += f"L{x:g} {y:g}"
        return element("path", class_="stream" if wire.is_thick else "wire", d=path)

    def _points(self, wire: Wire) -> list[tuple[float, float]]:
        """Return the points of a wire. A wire that begins or ends at a name keeps a distance."""
        points = [(self.x(column), self.y(row)) for column, row in wire.points]
        for end, offset in ((0, 0.55), (-1, -0.5)):
            if wire.points[end] in self.names:
                points[end] = (points[end][0], points[end][1] + offset * DOWN)
        return points

    def _head(self, wire: Wire) -> str:
        before, column = wire.points[-2][0], wire.points[-1][0]
        x, y = self._points(wire)[-1]
        kind = "streamhead" if wire.is_thick else "head"
        size = 6 if wire.is_thick else 4.5
        if before == column:
            path = f"M{x:g} {y:g}l{-size:g} {-1.7 * size:g}h{2 * size:g}z"
        else:
            side = 1 if before > column else -1
            path = f"M{x + side * 9:g} {y:g}l{side * 1.7 * size:g} {-size:g}v{2 * size:g}z"
        return element("path", class_=kind, d=path)

    def _text(self, mark: Mark) -> Iterator[str]:
        if isinstance(mark, Label):
            kinds = {"shape": "ink code shape halo", "name": "ink title", "faint": "faint small halo"}
            kind = kinds[mark.kind] + (" middle" if mark.is_centered else "")
            yield text(self.x(mark.x), self.y(mark.y) + 4, mark.text, kind)
        elif isinstance(mark, OperatorSign):
            x, y = self.x(mark.x), self.y(mark.y)
            yield element("circle", class_="join" if mark.is_join else "sign", cx=f"{x:g}", cy=f"{y:g}", r=8.5)
            yield text(x, y + 5, mark.text, "ink title middle")


def _towards(corner: tuple[float, float], other: tuple[float, float], distance: float) -> tuple[float, float]:
    """Return the point at this distance from the corner toward the other point, at most half way."""
    across, down = other[0] - corner[0], other[1] - corner[1]
    length = abs(across) + abs(down)
    share = min(distance, length / 2) / length if length else 0
    return round(corner[0] + across * share, 2), round(corner[1] + down * share, 2)
