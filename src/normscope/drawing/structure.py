"""Arrange the nodes of a graph: a chain of boxes, residual branches beside it, frames around modules.

A node that every path passes through (a dominator) lies on the chain. Nodes between two dominators lie beside it, in
lanes. Every node is drawn once; where it cannot be drawn in place, a reference names it.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from normscope.drawing.graph import DataflowGraph, Edge, GraphNode
from normscope.drawing.idioms import ResidualAdd, find_joins
from normscope.tracing.trace import Shape


@dataclass(frozen=True)
class NodeItem:
    """A node on the chain. `input_shape` is the shape on the arrow into it, None if the chain begins with it."""

    node: GraphNode
    input_shape: Shape | None


@dataclass(frozen=True)
class ReferenceItem:
    """The start of a lane that reads a node drawn elsewhere."""

    node: GraphNode
    input_shape: ClassVar[None] = None


@dataclass(frozen=True)
class MergeItem:
    """A node with several inputs: one lane for each."""

    node: GraphNode
    lanes: "tuple[Chain, ...]"

    @property
    def input_shape(self) -> Shape | None:
        """The shape on the arrow into the lanes; None if it differs between them."""
        shapes = {lane.first for lane in self.lanes if not lane.has_own_source}
        return shapes.pop() if len(shapes) == 1 else None


@dataclass(frozen=True)
class ResidualBranch:
    """A branch of the residual stream, and the addition where it joins."""

    join: GraphNode
    chain: "Chain"


@dataclass(frozen=True)
class ResidualItem:
    """A section of the residual stream: branches leave it at one point, pass the `shared` boxes, and join it.

    The stream itself goes straight on, or through the boxes of a projection `shortcut`.
    """

    shared: "Chain"
    branches: tuple[ResidualBranch, ...]
    shortcut: "Chain | None" = None

    @property
    def entry(self) -> "Chain":
        """The chain that leaves the stream."""
        return self.shared if self.shared.items else self.branches[0].chain

    @property
    def input_shape(self) -> Shape | None:
        return self.entry.first


@dataclass(frozen=True)
class FrameItem:
    """A module drawn with its contents, in a frame: a block that occurs `times` times, or a part of a block."""

    call: int
    times: int
    chain: "Chain"
    input_shape: Shape | None
    parameters: int
    is_part: bool = False


ChainItem = NodeItem | ReferenceItem | MergeItem | ResidualItem | FrameItem


@dataclass(frozen=True)
class Chain:
    """Items from top to bottom. `output_shape` is the shape on the arrow that leaves the last one."""

    items: tuple[ChainItem, ...]
    output_shape: Shape

    @property
    def first(self) -> Shape | None:
        """The shape on the first arrow; None if there is no arrow, or if lanes have different shapes."""
        return self.items[0].input_shape if self.items else self.output_shape

    @property
    def begins_with_box(self) -> bool:
        return bool(self.items) and isinstance(self.items[0], NodeItem)

    @property
    def has_own_source(self) -> bool:
        """Whether it begins with an input or a reference, rather than at the chain before."""
        if self.items and isinstance(self.items[0], MergeItem):
            return all(lane.has_own_source for lane in self.items[0].lanes)
        return bool(self.items) and is_source(self.items[0])


def is_source(item: ChainItem) -> bool:
    """Whether an item is an input or a reference, so that no arrow leads into it."""
    return not isinstance(item, MergeItem | ResidualItem) and item.input_shape is None


def build_chain(graph: DataflowGraph) -> Chain:
    """Return the chain from a model's input to its output."""
    return _ChainBuilder(graph).from_source(graph.output)


class _ChainBuilder:
    def __init__(self, graph: DataflowGraph) -> None:
        self.graph, self.joins = graph, find_joins(graph)
        self.drawn: set[int] = set()

    def from_source(self, end: Edge) -> Chain:
        """Return the chain that ends with this edge, from its main source."""
        source = self._source(end.source)
        first = () if source in self.drawn else (NodeItem(self.graph.nodes[source], None),)
        self.drawn.add(source)
        return Chain((*first, *self._chain(source, end).items), end.shape)

    def _source(self, index: int) -> int:
        """Return the main source of a node: follow the stream backward, or the first of several inputs."""
        while self.graph.nodes[index].inputs:
            join = self.joins.get(index)
            index = self.graph.nodes[index].inputs[0].source if join is None else join.stream
        return index

    def _chain(self, start: int, end: Edge) -> Chain:
        """Return the chain from a node that is already drawn to this edge."""
        path = self._dominators(start, end.source)
        known = [index for index in path if index in self.drawn]
        items: list[ChainItem] = []
        if known:  # another lane has drawn it
            start = known[-1]
            items.append(ReferenceItem(self.graph.nodes[start]))
            path = path[path.index(start) + 1 :]
        items += [self._item(before, index) for before, index in pairwise([start, *path])]
        return Chain(tuple(items), end.shape)

    def _dominators(self, start: int, end: int) -> list[int]:
        """Return the nodes that every path from start to end passes through, without the start."""
        if start == end:
            return []
        ancestors = self.graph.ancestors
        region = [n for n in sorted(ancestors[end] | {end}) if start in ancestors[n]]
        path, lowest_source = [], end
        for index in reversed(region):
            if lowest_source >= index:  # no later edge passes it by
                path.append(index)
            sources = [edge.source for edge in self.graph.nodes[index].inputs]
            lowest_source = min(lowest_source, *(n for n in sources if self._leads_to(start, n)))
        return path[::-1]

    def _item(self, start: int, index: int) -> ChainItem:
        """Return the item of a node on the chain, including the nodes between it and the one before."""
        self.drawn.add(index)
        node = self.graph.nodes[index]
        join = self.joins.get(index)
        if join is not None and self._leads_to(start, join.stream):
            residual = self._residual(start, index)
            if residual is not None:
                return residual
        if len(node.inputs) == 1:
            return NodeItem(node, node.inputs[0].shape)
        return MergeItem(node, tuple(self._lane(start, edge) for edge in node.inputs))

    def _leads_to(self, start: int, index: int) -> bool:
        return start == index or start in self.graph.ancestors[index]

    def _lane(self, start: int, edge: Edge) -> Chain:
        if self._leads_to(start, edge.source):
            return self._chain(start, edge)
        if edge.source in self.drawn:
            return Chain((ReferenceItem(self.graph.nodes[edge.source]),), edge.shape)
        return self.from_source(edge)

    def _residual(self, start: int, last: int) -> ResidualItem | None:
        """Return all residual additions between two nodes of the chain; None if they do not form one stream."""
        joins: list[ResidualAdd] = []
        at = last
        while at != start:
            if at not in self.joins:
                return None
            joins.insert(0, self.joins[at])
            at = joins[0].stream if joins[0].fork is None else joins[0].fork
        is_projected = joins[0].fork is not None
        if len(joins) > 1 and any(join.fork is not None for join in joins):
            return None  # drawn as lanes
        self.drawn.update(join.node for join in joins)
        paths = [self._dominators(start, join.branch) for join in joins]
        shared = [n for n in paths[0] if all(n in path for path in paths)] if len(paths) > 1 else []
        end = shared[-1] if shared else start
        first = self._chain(start, Edge(end, self.graph.nodes[end if shared else last].shape))
        start = end
        shortcut = self._chain(start, self._edge(joins[0].node, joins[0].stream)) if is_projected else None
        branches = [
            ResidualBranch(self.graph.nodes[join.node], self._chain(start, self._edge(join.node, join.branch)))
            for join in joins
        ]
        return ResidualItem(first, tuple(branches), shortcut)

    def _edge(self, node: int, source: int) -> Edge:
        return next(edge for edge in self.graph.nodes[node].inputs if edge.source == source)
