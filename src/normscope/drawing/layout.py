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
    has_own_source,
    input_shape,
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
        after = [*(input_shape(item) for item in chain.items[streams[-1] + 1 :]), chain.output_shape]
        passed = after[: max(0, position - streams[-1])]
        if isinstance(chain.items[streams[-1]], FrameItem):
            return len(passed) <= 1
        return all(shape == after[0] for shape in passed)

    def chain(self, chain: Chain, *, is_entered: bool = False) -> MarkGroup:
        """Lay out items from top to bottom. With `is_entered`, the caller draws the arrow into the first."""
        group = MarkGroup()
        for position, item in enumerate(chain.items):
            thick = self.is_thick(chain, position)
            below = self.item(item, thick)
            if position > 0 or not (is_entered or isinstance(item, ReferenceItem) or _starts(item)):
                self.arrow(group, input_shape(item), thick, group.height, has_arrowhead=isinstance(item, NodeItem))
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

    def item(self, item: ChainItem, thick: bool) -> MarkGroup:
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
        is_norm = has_norm_name(self.labels.trace.calls[box.node.call].class_name)
        group.add(_centered(lines, 0, "function" if not box.node.is_module else "norm" if is_norm else "module"))
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
        last = self.is_thick(frame.chain, len(frame.chain.items))
        if last:
            self.arrow(group, None, True, group.height)
        elif frame.chain.items:
            group.add(Wire(((0, group.height - 1), (0, group.height))))
            group.add(Wire(((0, 0), (0, 1)), has_arrowhead=isinstance(frame.chain.items[0], NodeItem)))
        left, right = group.left + 2, max(group.right + 2, len(title) + 6)
        kind: Literal["repeated", "frame"] = "repeated" if frame.times > 1 else "frame"
        group.marks.insert(0, Rectangle(-left, 0, left + right + 1, group.height + 1, (title,), kind))
        group.left, group.right, group.height = left, right, group.height + 1
        return group

    def merge(self, merge: MergeItem) -> MarkGroup:
        """Lay out lanes side by side, and the node that they end in."""
        alone = [has_own_source(lane) for lane in merge.lanes]
        lanes = [self.chain(lane, is_entered=True) for lane in merge.lanes]
        shared = input_shape(merge) is not None
        labels = [self.labels.shape(lane.output_shape) for lane in merge.lanes]
        halves = [_half(label) for label in labels]
        # An empty lane has only the arrow into the node.
        starts = [
            0 if single or (shared or not lane.items) else 1 for single, lane in zip(alone, merge.lanes, strict=True)
        ]
        columns = _columns(lanes, halves, alone)
        hanging = [column for column, single in zip(columns, alone, strict=True) if not single]
        group = MarkGroup()
        fork = 1 if len(hanging) > 1 else 0
        bottom = fork + max(lane.height + start for lane, start in zip(lanes, starts, strict=True))
        for index, (column, lane, start) in enumerate(zip(columns, lanes, starts, strict=True)):
            top, own = fork + start, merge.lanes[index]
            if not alone[index]:
                head = bool(own.items) and isinstance(own.items[0], NodeItem)
                corner = ((0, 0),) if column and fork else ()
                group.add(Wire(((0, -1), *corner, (column, 0), (column, top)), has_arrowhead=head))
                if start and own.first is not None:
                    group.add(Label(column, fork, self.labels.shape(own.first), "shape"))
            group.place(lane, column, top)
            group.add(Wire(((column, top + lane.height - 1), (column, bottom))))
            if fork or own.items:  # the shape of a straight lane is shown already
                group.add(Label(column, bottom, labels[index], "shape"))
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
        first = residual.shared if residual.shared.items else residual.branches[0].chain
        row = self._enter(group, first, ((0, 0), (x, 0)), with_shape=True)
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
                row = self._enter(
                    group, branch.chain, ((x, row - 1), (x, row)) if index == 0 else ((aside, row), (x, row))
                )
            if index == 0 and len(branches) > 1:  # the wire to later branches passes on the right
                below = sum(marks.height + 3 for marks in branches[:-1])
                group.add(Wire(((x, row - 1), (aside, row - 1), (aside, row - 1 + below))))
            group.place(marks, x, row)
            end = row + marks.height
            row = max(end, shortcut.height)
            self.shape(group, branch.chain.output_shape, False, x, end)
            row += 1
            group.add(Wire(((x, end - 1), (x, row), (0, row)), has_arrowhead=True))
            if residual.shortcut is not None:
                has_box = isinstance(residual.shortcut.items[0], NodeItem)
                group.add(Wire(((0, top), (0, 2)), is_thick=True, has_arrowhead=has_box))
                top = shortcut.height - 1
            group.add(Wire(((0, top), (0, row)), is_thick=True))
            group.add(OperatorSign(0, row, "+", is_join=True))
            top, row = row, row + 1
        group.height = row
        return group

    def _enter(self, group: MarkGroup, chain: Chain, points: tuple[Cell, Cell], *, with_shape: bool = False) -> int:
        """Add the arrow into a chain beside the stream. Returns the row where the chain begins."""
        item = chain.items[0] if chain.items else None
        (_, (x, row)), shape = points, None if item is None else input_shape(item)
        first = row + 2 if with_shape else row + 1
        group.add(Wire((*points, (x, first)), has_arrowhead=isinstance(item, NodeItem)))
        if with_shape:
            self.shape(group, shape, False, x, row + 1)
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
    widest = max(max(side) for side in sides)
    if all(not single for single in alone) and len(sides) * (2 * widest + 1 + LANE_GAP) <= MAX_LANES_WIDTH:
        sides = [(widest, widest)] * len(sides)
    columns, at = [], 0
    for left, right in sides:
        columns.append(at + left)
        at += left + right + 1 + LANE_GAP
    hanging = [column for column, single in zip(columns, alone, strict=True) if not single]
    middle = hanging[0] if len(hanging) == 1 else (columns[0] + columns[-1]) // 2
    if len(hanging) == len(columns) and len(columns) % 2:
        middle = columns[len(columns) // 2]
    return [column - middle for column in columns]


def _carries_stream(item: ChainItem) -> bool:
    return isinstance(item, ResidualItem) or (
        isinstance(item, FrameItem) and any(_carries_stream(inner) for inner in item.chain.items)
    )


def _starts(item: ChainItem) -> bool:
    """Whether the item is the start of a chain, so that no arrow leads into it."""
    return isinstance(item, NodeItem | FrameItem) and item.input_shape is None


def _half(text: str) -> int:
    return (len(text) + 1) // 2


def _text(text: str, kind: Literal["name", "faint"] = "faint") -> MarkGroup:
    group = MarkGroup(height=1)
    group.add(Label(0, 0, text, kind))
    return group


def _centered(lines: tuple[str, ...], row: int, kind: Kind, reach: int = 0) -> Rectangle:
    half = max(reach, *(len(chain) // 2 + 2 for chain in lines))
    return Rectangle(-half, row, 2 * half + 1, len(lines) + 2, lines, kind)
