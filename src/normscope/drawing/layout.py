"""Lay out a chain in cells. A cell is one character in a terminal, and a small rectangle in an SVG image."""

from typing import Literal

from normscope.drawing.labels import Labels
from normscope.drawing.marks import Cell, Label, MarkGroup, OperatorSign, Rectangle, Wire
from normscope.drawing.structure import (
    Chain,
    ChainItem,
    FrameItem,
    MergeItem,
    NodeItem,
    ReferenceItem,
    ResidualItem,
    is_source,
)
from normscope.tracing.module_kinds import has_norm_name
from normscope.tracing.trace import Shape

LANE_GAP = 2  # between two lanes
BRANCH_GAP = 3  # between the stream and a branch
Kind = Literal["module", "function", "norm"]
MAX_LANES_WIDTH = 68  # lanes get the same width if they fit into this width


def compute_layout(chain: Chain, labels: Labels) -> MarkGroup:
    """Lay out a whole drawing: the chain, and the shape of the output at its end."""
    layout = _Layout(labels)
    group = layout.chain(chain)
    thick = layout.is_thick(chain, len(chain.items))
    row = group.height
    group.add(Wire(((0, row - 1), (0, row + 2)), thick, has_arrowhead=True), Label(0, row + 2, "output", "name"))
    layout.shape(group, chain.output_shape, thick, 0, row)
    group.height = row + 3
    return group


class _Layout:
    def __init__(self, labels: Labels) -> None:
        self.labels = labels

    def is_thick(self, chain: Chain, position: int) -> bool:
        """Whether the arrow before this item is the residual stream.

        The stream begins at the first fork and lasts as long as the shape stays the same; after folded blocks it lasts
        until the next item.
        """
        streams = [i for i, item in enumerate(chain.items) if _carries_stream(item)]
        if not streams or position < streams[0]:
            return False
        after = [*(item.input_shape for item in chain.items[streams[-1] + 1 :]), chain.output_shape]
        passed = after[: max(0, position - streams[-1])]
        if isinstance(chain.items[streams[-1]], FrameItem):
            return len(passed) <= 1
        return all(shape == after[0] for shape in passed)

    def chain(self, chain: Chain, *, is_entered: bool = False) -> MarkGroup:
        """Lay out items from top to bottom. With `is_entered`, the caller draws the arrow into the first."""
        group = MarkGroup()
        for position, item in enumerate(chain.items):
            thick = self.is_thick(chain, position)
            below = self.item(item)
            if position > 0 or not (is_entered or is_source(item)):
                self.arrow(group, item.input_shape, thick, group.height, has_arrowhead=isinstance(item, NodeItem))
            group.place(below, 0, group.height)
        return group

    def arrow(
        self, group: MarkGroup, shape: Shape | None, thick: bool, row: int, *, has_arrowhead: bool = False
    ) -> None:
        """Add one row of an arrow, with its shape. The wire runs from the row above to the row below."""
        group.add(Wire(((0, row - 1), (0, row + 1)), thick, has_arrowhead))
        self.shape(group, shape, thick, 0, row)

    def shape(self, group: MarkGroup, shape: Shape | None, thick: bool, x: int, row: int) -> None:
        if shape is not None:
            text = self.labels.shape(shape)
            group.add(Label(x + 2, row, text, "shape", is_centered=False) if thick else Label(x, row, text, "shape"))
        group.height = max(group.height, row + 1)

    def item(self, item: ChainItem) -> MarkGroup:
        if isinstance(item, NodeItem):
            return self.box(item)
        if isinstance(item, ReferenceItem):
            return _text(f"from {self.labels.reference(item.node)}")
        if isinstance(item, MergeItem):
            return self.merge(item)
        if isinstance(item, ResidualItem):
            return self.residual(item)
        return self.frame(item)

    def box(self, box: NodeItem) -> MarkGroup:
        lines = self.labels.box(box.node)
        if box.node.operation == "input":
            return _text(lines[0], "name")
        group = MarkGroup(height=len(lines) + 2)
        call = self.labels.trace.calls[box.node.call]
        kind: Kind = "function" if not box.node.is_module else "norm" if has_norm_name(call.class_name) else "module"
        group.add(_centered(lines, 0, kind, module=call.path if box.node.is_module else None))
        return group

    def frame(self, frame: FrameItem) -> MarkGroup:
        call = self.labels.trace.calls[frame.call]
        title = self.labels.frame(call, frame.times, frame.parameters, frame.is_part)
        inside = self.chain(frame.chain, is_entered=True)
        group = MarkGroup()
        thick = self.is_thick(frame.chain, 0)
        group.place(inside, 0, 2 if thick else 1)
        if thick:
            self.arrow(group, None, True, 1)
        if self.is_thick(frame.chain, len(frame.chain.items)):
            self.arrow(group, None, True, group.height)
        elif frame.chain.items:
            group.add(Wire(((0, group.height - 1), (0, group.height))))
            group.add(Wire(((0, 0), (0, 1)), has_arrowhead=frame.chain.begins_with_box))
        left, right = group.left + 2, max(group.right + 2, len(title) + 6)
        kind: Literal["repeated", "frame"] = "repeated" if frame.times > 1 else "frame"
        group.marks.insert(0, Rectangle(-left, 0, left + right + 1, group.height + 1, (title,), kind, module=call.path))
        group.left, group.right, group.height = left, right, group.height + 1
        return group

    def merge(self, merge: MergeItem) -> MarkGroup:
        """Lay out lanes side by side, and the node that they end in."""
        alone = [lane.has_own_source for lane in merge.lanes]
        drawn = [self.chain(lane, is_entered=True) for lane in merge.lanes]
        labels = [self.labels.shape(lane.output_shape) for lane in merge.lanes]
        columns = _columns(drawn, [_half(label) for label in labels], alone)
        fork = 1 if alone.count(False) > 1 else 0
        is_shared = merge.input_shape is not None
        # An empty lane has only the arrow into the node.
        tops = [fork if lane.has_own_source or is_shared or not lane.items else fork + 1 for lane in merge.lanes]
        bottom = max(marks.height + top for marks, top in zip(drawn, tops, strict=True))
        group = MarkGroup()
        for lane, marks, label, column, top in zip(merge.lanes, drawn, labels, columns, tops, strict=True):
            if not lane.has_own_source:
                corner = ((0, 0),) if column and fork else ()
                group.add(Wire(((0, -1), *corner, (column, 0), (column, top)), has_arrowhead=lane.begins_with_box))
                if top > fork and lane.first is not None:
                    group.add(Label(column, fork, self.labels.shape(lane.first), "shape"))
            group.place(marks, column, top)
            group.add(Wire(((column, top + marks.height - 1), (column, bottom))))
            if fork or lane.items:  # the shape of a straight lane is shown already
                group.add(Label(column, bottom, label, "shape"))
        group.height = bottom + 1
        return self._merge_node(merge, columns, group)

    def _merge_node(self, merge: MergeItem, columns: list[int], group: MarkGroup) -> MarkGroup:
        """Add the node where lanes meet: a sign for a sum or a product, otherwise a wide box."""
        row = group.height
        sign = {"add": "+", "mul": "×"}.get(merge.node.operation)
        if sign is not None and len(columns) == 2:
            for column in columns:
                points = ((0, row - 1), (0, row)) if column == 0 else ((column, row - 1), (column, row), (0, row))
                group.add(Wire(points, has_arrowhead=column != 0))
            group.add(OperatorSign(0, row, sign))
            group.height += 1
            return group
        for column in columns:
            group.add(Wire(((column, row - 1), (column, row)), has_arrowhead=True))
        lines = self.labels.box(merge.node)
        reach = max(-min(columns), max(columns)) + 4
        group.add(_centered(lines, row, "module" if merge.node.is_module else "function", reach))
        group.height += len(lines) + 2
        return group

    def residual(self, residual: ResidualItem) -> MarkGroup:
        """Lay out the residual stream as a straight line, with the branches beside it."""
        shared = self.chain(residual.shared, is_entered=True)
        branches = [self.chain(branch.chain, is_entered=True) for branch in residual.branches]
        shortcut = self._shortcut(residual)
        labels = [self.labels.shape(branch.chain.output_shape) for branch in residual.branches]
        widest = max([shared.left, *(branch.left for branch in branches), *map(_half, labels)])
        x = shortcut.right + widest + BRANCH_GAP
        group = MarkGroup()
        group.place(shortcut, 0, 1)
        row = self._enter(group, residual.entry, ((0, 0), (x, 0)), with_shape=True)
        if residual.shared.items:
            group.place(shared, x, row)
            row += shared.height
            group.add(Wire(((x, row - 1), (x, row + 1))))
            self.shape(group, residual.shared.output_shape, False, x, row)
            row += 1
        aside = x + max(branch.right for branch in branches) + 3
        top = 0
        for index, (branch, marks) in enumerate(zip(residual.branches, branches, strict=True)):
            if len(branches) > 1:
                start = (aside, row) if index else (x, row - 1)
                row = self._enter(group, branch.chain, (start, (x, row)))
            if index == 0 and len(branches) > 1:  # the wire to later branches passes on the right
                below = sum(marks.height + 3 for marks in branches[:-1])
                group.add(Wire(((x, row - 1), (aside, row - 1), (aside, row - 1 + below))))
            group.place(marks, x, row)
            end = row + marks.height
            self.shape(group, branch.chain.output_shape, False, x, end)
            row = max(end, shortcut.height) + 1
            group.add(Wire(((x, end - 1), (x, row), (0, row)), has_arrowhead=True))
            if residual.shortcut is not None:
                has_box = residual.shortcut.begins_with_box
                group.add(Wire(((0, top), (0, 2)), is_thick=True, has_arrowhead=has_box))
                top = shortcut.height - 1
            group.add(Wire(((0, top), (0, row)), is_thick=True))
            group.add(OperatorSign(0, row, "+", is_join=True))
            top, row = row, row + 1
        group.height = row
        return group

    def _enter(self, group: MarkGroup, chain: Chain, points: tuple[Cell, Cell], *, with_shape: bool = False) -> int:
        """Add the arrow into a chain beside the stream. Returns the row where the chain begins."""
        x, row = points[1]
        first = row + 2 if with_shape else row + 1
        group.add(Wire((*points, (x, first)), has_arrowhead=chain.begins_with_box))
        if with_shape:
            self.shape(group, chain.first if chain.items else None, False, x, row + 1)
        return first

    def _shortcut(self, residual: ResidualItem) -> MarkGroup:
        """Return the boxes on the stream, and below them the shape that they output; nothing for a plain stream."""
        group = MarkGroup()
        if residual.shortcut is not None:
            group.place(self.chain(residual.shortcut, is_entered=True), 0, 1)
            self.shape(group, residual.shortcut.output_shape, True, 0, group.height)
        return group


def _columns(lanes: list[MarkGroup], halves: list[int], alone: list[bool]) -> list[int]:
    """Return the columns of the lanes, relative to the column of the whole. Lanes have the same width if they fit."""
    sides = [(max(lane.left, half), max(lane.right, half)) for lane, half in zip(lanes, halves, strict=True)]
    widest = max(map(max, sides))
    if not any(alone) and len(sides) * (2 * widest + 1 + LANE_GAP) <= MAX_LANES_WIDTH:
        sides = [(widest, widest)] * len(sides)
    columns, at = [], 0
    for left, right in sides:
        columns.append(at + left)
        at += left + right + 1 + LANE_GAP
    middle = columns[alone.index(False)] if alone.count(False) == 1 else (columns[0] + columns[-1]) // 2
    if not any(alone) and len(columns) % 2:
        middle = columns[len(columns) // 2]
    return [column - middle for column in columns]


def _carries_stream(item: ChainItem) -> bool:
    return isinstance(item, ResidualItem) or (
        isinstance(item, FrameItem) and any(_carries_stream(inner) for inner in item.chain.items)
    )


def _half(text: str) -> int:
    return (len(text) + 1) // 2


def _text(text: str, kind: Literal["name", "faint"] = "faint") -> MarkGroup:
    group = MarkGroup(height=1)
    group.add(Label(0, 0, text, kind))
    return group


def _centered(lines: tuple[str, ...], row: int, kind: Kind, reach: int = 0, module: str | None = None) -> Rectangle:
    half = max(reach, *(len(chain) // 2 + 2 for chain in lines))
    return Rectangle(-half, row, 2 * half + 1, len(lines) + 2, lines, kind, module=module)
