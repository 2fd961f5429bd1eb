"""Where everything goes, in cells: one cell is a character of a terminal, and a small oblong of a page."""

from collections.abc import Iterator
from typing import Literal

from normscope.drawing.labels import Words
from normscope.drawing.shapes import Label, Oblong, Piece, Place, Sign, Wire
from normscope.drawing.structure import (
    Box,
    Frame,
    Item,
    Line,
    Merge,
    Reference,
    Residual,
    arrives,
    begins_alone,
)
from normscope.tracing.trace import Shape

GAP = 2  # between two lanes
AWAY = 3  # from the stream to what lies beside it
Kind = Literal["module", "function", "norm"]
ROOM = 68  # for lanes beside each other that are to be of one width


def lay_out(line: Line, words: Words) -> Piece:
    """The whole drawing: the line, with the shape of its result at the end."""
    layout = _Layout(words)
    piece = layout.line(line)
    thick = layout.is_thick(line, len(line.items))
    row = piece.height
    piece.add(Wire(((0, row - 1), (0, row + 2)), thick, has_head=True), Label(0, row + 2, "output", "name"))
    layout.shape(piece, line.leaves, thick, 0, row)
    piece.height = row + 3
    return piece


class _Layout:
    def __init__(self, words: Words) -> None:
        self.words = words

    def is_thick(self, line: Line, place: int) -> bool:
        """Whether the arrow before this item is the stream: from the first fork on, as long as the shape stays; after
        folded blocks, up to the next item."""
        streams = [i for i, item in enumerate(line.items) if _carries_stream(item)]
        if not streams or place < streams[0]:
            return False
        after = [*(arrives(item) for item in line.items[streams[-1] + 1 :]), line.leaves]
        passed = after[: max(0, place - streams[-1])]
        if isinstance(line.items[streams[-1]], Frame):
            return len(passed) <= 1
        return all(shape == after[0] for shape in passed)

    def line(self, line: Line, *, is_entered: bool = False) -> Piece:
        """Items below each other. With `is_entered` the arrow into the first is someone else's."""
        piece = Piece()
        for place, item in enumerate(line.items):
            thick = self.is_thick(line, place)
            below = self.item(item, thick)
            if place > 0 or not (is_entered or isinstance(item, Reference) or _starts(item)):
                self.arrow(piece, arrives(item), thick, piece.height, has_head=isinstance(item, Box))
            piece.put(below, 0, piece.height)
        return piece

    def arrow(self, piece: Piece, shape: Shape | None, thick: bool, row: int, *, has_head: bool = False) -> None:
        """One row of an arrow, with the shape at it; the wire runs from the row above to the row below."""
        piece.add(Wire(((0, row - 1), (0, row + 1)), thick, has_head))
        self.shape(piece, shape, thick, 0, row)

    def shape(self, piece: Piece, shape: Shape | None, thick: bool, x: int, row: int) -> None:
        if shape is not None:
            words = self.words.shape(shape)
            piece.add(Label(x + 2, row, words, "shape", is_centred=False) if thick else Label(x, row, words, "shape"))
        piece.height = max(piece.height, row + 1)

    def item(self, item: Item, thick: bool) -> Piece:
        if isinstance(item, Box):
            return self.box(item)
        if isinstance(item, Reference):
            return _text(f"from {self.words.reference(item.node)}")
        if isinstance(item, Merge):
            return self.merge(item)
        if isinstance(item, Residual):
            return self.residual(item)
        return self.frame(item)

    def box(self, box: Box) -> Piece:
        lines = self.words.box(box.node)
        if box.node.operation == "input":
            return _text(lines[0], "name")
        piece = Piece(height=len(lines) + 2)
        kind: Kind = "function" if not box.node.is_module else "norm" if self._is_norm(box) else "module"
        piece.add(_centred(lines, 0, kind))
        return piece

    def _is_norm(self, box: Box) -> bool:
        return "norm" in self.words.trace.calls[box.node.call].kind.lower()

    def frame(self, frame: Frame) -> Piece:
        call = self.words.trace.calls[frame.call]
        title = self.words.frame(call, frame.times, frame.parameters, frame.is_part)
        inside = self.line(frame.line, is_entered=True)
        piece = Piece()
        thick = self.is_thick(frame.line, 0)
        piece.put(inside, 0, 2 if thick else 1)
        if thick:
            self.arrow(piece, None, True, 1)
        last = self.is_thick(frame.line, len(frame.line.items))
        if last:
            self.arrow(piece, None, True, piece.height)
        elif frame.line.items:
            piece.add(Wire(((0, piece.height - 1), (0, piece.height))))
            piece.add(Wire(((0, 0), (0, 1)), has_head=isinstance(frame.line.items[0], Box)))
        left, right = piece.left + 2, max(piece.right + 2, len(title) + 6)
        kind: Literal["repeated", "frame"] = "repeated" if frame.times > 1 else "frame"
        piece.marks.insert(0, Oblong(-left, 0, left + right + 1, piece.height + 1, (title,), kind))
        piece.left, piece.right, piece.height = left, right, piece.height + 1
        return piece

    def merge(self, merge: Merge) -> Piece:
        """Lanes beside each other, and the node that they end in."""
        alone = [begins_alone(lane) for lane in merge.lanes]
        lanes = [self.line(lane, is_entered=True) for lane in merge.lanes]
        shared = arrives(merge) is not None
        labels = [self.words.shape(lane.leaves) for lane in merge.lanes]
        halves = [_half(label) for label in labels]
        # An empty lane has no arrow of its own before the last one.
        starts = [
            0 if single or (shared or not lane.items) else 1 for single, lane in zip(alone, merge.lanes, strict=True)
        ]
        columns = _columns(lanes, halves, alone)
        hanging = [column for column, single in zip(columns, alone, strict=True) if not single]
        piece = Piece()
        fork = 1 if len(hanging) > 1 else 0
        bottom = fork + max(lane.height + start for lane, start in zip(lanes, starts, strict=True))
        for number, (column, lane, start) in enumerate(zip(columns, lanes, starts, strict=True)):
            top, own = fork + start, merge.lanes[number]
            if not alone[number]:
                head = bool(own.items) and isinstance(own.items[0], Box)
                corner = ((0, 0),) if column and fork else ()
                piece.add(Wire(((0, -1), *corner, (column, 0), (column, top)), has_head=head))
                if start and own.first is not None:
                    piece.add(Label(column, fork, self.words.shape(own.first), "shape"))
            piece.put(lane, column, top)
            piece.add(Wire(((column, top + lane.height - 1), (column, bottom))))
            if fork or own.items:  # a trunk that goes straight through has said its shape
                piece.add(Label(column, bottom, labels[number], "shape"))
        piece.height = bottom + 1
        return self._met(merge, columns, piece)

    def _met(self, merge: Merge, columns: list[int], piece: Piece) -> Piece:
        """The node where lanes meet: a sign for a sum or a product, a wide box for all else."""
        row = piece.height
        sign = {"add": "+", "mul": "×"}.get(merge.node.operation)
        if sign is not None and len(columns) == 2:
            for column in columns:
                points = ((0, row - 1), (0, row)) if column == 0 else ((column, row - 1), (column, row), (0, row))
                piece.add(Wire(points, has_head=column != 0))
            piece.add(Sign(0, row, sign))
            piece.height += 1
            return piece
        for column in columns:
            piece.add(Wire(((column, row - 1), (column, row)), has_head=True))
        lines = self.words.box(merge.node)
        reach = max(-min(columns), max(columns)) + 4
        piece.add(_centred(lines, row, "module" if merge.node.is_module else "function", reach))
        piece.height += len(lines) + 2
        return piece

    def residual(self, residual: Residual) -> Piece:
        """The stream straight down, the branches beside it."""
        shared = self.line(residual.shared, is_entered=True)
        lines = [self.line(branch.line, is_entered=True) for branch in residual.branches]
        widest = max([shared.left, *(line.left for line in lines), *(_half(s) for s in self._labels(residual))])
        x = widest + AWAY
        piece = Piece()
        first = residual.shared if residual.shared.items else residual.branches[0].line
        row = self._enter(piece, first, ((0, 0), (x, 0)), arrives_at=True)
        if residual.shared.items:
            piece.put(shared, x, row)
            row += shared.height
            piece.add(Wire(((x, row - 1), (x, row + 1))))
            self.shape(piece, residual.shared.leaves, False, x, row)
            row += 1
        aside = x + max(line.right for line in lines) + 3
        top = 0
        for number, (branch, line) in enumerate(zip(residual.branches, lines, strict=True)):
            if len(lines) > 1:
                row = self._enter(
                    piece, branch.line, ((x, row - 1), (x, row)) if number == 0 else ((aside, row), (x, row))
                )
            if number == 0 and len(lines) > 1:  # past the branches before the last, on the right
                below = sum(line.height + 3 for line in lines[:-1])
                piece.add(Wire(((x, row - 1), (aside, row - 1), (aside, row - 1 + below))))
            piece.put(line, x, row)
            row += line.height
            self.shape(piece, branch.line.leaves, False, x, row)
            row += 1
            piece.add(Wire(((x, row - 2), (x, row), (0, row)), has_head=True))
            piece.add(Wire(((0, top), (0, row)), is_thick=True))
            piece.add(Sign(0, row, "+", is_join=True))
            top, row = row, row + 1
        piece.height = row
        return piece

    def _enter(self, piece: Piece, line: Line, way: tuple[Place, Place], *, arrives_at: bool = False) -> int:
        """The arrow into a line beside the stream, with its shape or without; returns the row where the line begins."""
        item = line.items[0] if line.items else None
        (_, (x, row)), shape = way, None if item is None else arrives(item)
        first = row + 2 if arrives_at else row + 1
        piece.add(Wire((*way, (x, first)), has_head=isinstance(item, Box)))
        if arrives_at:
            self.shape(piece, shape, False, x, row + 1)
        return first

    def _labels(self, residual: Residual) -> Iterator[str]:
        for branch in residual.branches:
            yield self.words.shape(branch.line.leaves)


def _columns(lanes: list[Piece], halves: list[int], alone: list[bool]) -> list[int]:
    """The axes of lanes beside each other, counted from the axis of the whole; lanes alike in width where they fit."""
    sides = [(max(lane.left, half), max(lane.right, half)) for lane, half in zip(lanes, halves, strict=True)]
    widest = max(max(side) for side in sides)
    if all(not single for single in alone) and len(sides) * (2 * widest + 1 + GAP) <= ROOM:
        sides = [(widest, widest)] * len(sides)
    columns, at = [], 0
    for left, right in sides:
        columns.append(at + left)
        at += left + right + 1 + GAP
    hanging = [column for column, single in zip(columns, alone, strict=True) if not single]
    middle = hanging[0] if len(hanging) == 1 else (columns[0] + columns[-1]) // 2
    if len(hanging) == len(columns) and len(columns) % 2:
        middle = columns[len(columns) // 2]
    return [column - middle for column in columns]


def _carries_stream(item: Item) -> bool:
    return isinstance(item, Residual) or (
        isinstance(item, Frame) and any(_carries_stream(inner) for inner in item.line.items)
    )


def _starts(item: Item) -> bool:
    """Whether a line begins with it, so that no arrow leads into it."""
    return isinstance(item, Box | Frame) and item.arrives is None


def _half(text: str) -> int:
    return (len(text) + 1) // 2


def _text(text: str, kind: Literal["name", "faint"] = "faint") -> Piece:
    piece = Piece(height=1)
    piece.add(Label(0, 0, text, kind))
    return piece


def _centred(lines: tuple[str, ...], row: int, kind: Kind, reach: int = 0) -> Oblong:
    half = max(reach, *(len(line) // 2 + 2 for line in lines))
    return Oblong(-half, row, 2 * half + 1, len(lines) + 2, lines, kind)
