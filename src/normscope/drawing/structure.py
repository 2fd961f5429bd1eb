"""Arrange the nodes of a graph: a chain of boxes, residual branches beside it, frames around modules.

A node that every path passes through (a dominator) lies on the chain. Nodes between two dominators lie beside it, in
lanes. Every node is drawn once; where it cannot be drawn in place, a reference names it.
"""

from dataclasses import dataclass

from normscope.drawing.graph import DataflowGraph, Edge, GraphNode
from normscope.drawing.residual_joins import find_joins
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


@dataclass(frozen=True)
class MergeItem:
    """A node with several inputs: one lane for each."""

    node: GraphNode
    lanes: "tuple[Chain, ...]"


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
        if not self.items:
            return self.output_shape
        return input_shape(self.items[0])


def input_shape(item: ChainItem) -> Shape | None:
    """Return the shape on the arrow into an item."""
    if isinstance(item, NodeItem | FrameItem):
        return item.input_shape
    if isinstance(item, ReferenceItem):
        return None
    if isinstance(item, ResidualItem):
        return item.branches[0].chain.first if not item.shared.items else item.shared.first
    shapes = {lane.first for lane in item.lanes if not has_own_source(lane)}
    return shapes.pop() if len(shapes) == 1 else None


def has_own_source(chain: Chain) -> bool:
    """Whether a lane begins with an input or a reference, rather than at the chain."""
    if not chain.items:
        return False
    first = chain.items[0]
    if isinstance(first, ReferenceItem):
        return True
    if isinstance(first, MergeItem):
        return all(has_own_source(lane) for lane in first.lanes)
    return isinstance(first, NodeItem | FrameItem) and first.input_shape is None


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
        if source in self.drawn:
            return self._chain(source, end)
        self.drawn.add(source)
        rest = self._chain(source, end)
        return Chain((NodeItem(self.graph.nodes[source], None), *rest.items), rest.output_shape)

    def _source(self, index: int) -> int:
        """Return the main source of a node: follow the stream backward, or the first of several inputs."""
        while self.graph.nodes[index].inputs:
            join = self.joins.get(index)
            index = self.graph.nodes[index].inputs[0].source if join is None else join.stream
        return index

    def _chain(self, start: int, end: Edge) -> Chain:
        """Return the chain from a node that is already drawn to this edge."""
        path = self._dominators(start, end.source)
        known = [position for position, index in enumerate(path) if index in self.drawn]
        items: list[ChainItem] = []
        if known:  # another lane has drawn it
            items.append(ReferenceItem(self.graph.nodes[path[known[-1]]]))
            start, path = path[known[-1]], path[known[-1] + 1 :]
        for index in path:
            items.append(self._item(start, index))
            start = index
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
            lowest_source = min(lowest_source, *(n for n in sources if n == start or start in ancestors[n]))
        return path[::-1]

    def _item(self, start: int, index: int) -> ChainItem:
        """Return the item of a node on the chain, including the nodes between it and the one before."""
        self.drawn.add(index)
        node = self.graph.nodes[index]
        join = self.joins.get(index)
        if join is not None and (start == join.stream or start in self.graph.ancestors[join.stream]):
            residual = self._residual(start, index)
            if residual is not None:
                return residual
        if len(node.inputs) == 1:
            return NodeItem(node, node.inputs[0].shape)
        return MergeItem(node, tuple(self._lane(start, edge) for edge in node.inputs))

    def _lane(self, start: int, edge: Edge) -> Chain:
        if start == edge.source or start in self.graph.ancestors[edge.source]:
            return self._chain(start, edge)
        if edge.source in self.drawn:
            return Chain((ReferenceItem(self.graph.nodes[edge.source]),), edge.shape)
        return self.from_source(edge)

    def _residual(self, start: int, last: int) -> ResidualItem | None:
        """Return all residual additions between two nodes of the chain; None if they do not form one stream."""
        joins, at = [], last
        while at != start:
            if at not in self.joins:
                return None
            join = self.joins[at]
            joins.append(join)
            at = join.stream if join.fork is None else join.fork
        joins.reverse()
        is_projected = joins[0].fork is not None
        if len(joins) > 1 and any(join.fork is not None for join in joins):
            return None  # drawn as lanes
        self.drawn.update(join.node for join in joins)
        paths = [self._dominators(start, join.branch) for join in joins]
        shared = [n for n in paths[0] if all(n in path for path in paths)] if len(paths) > 1 else []
        if shared:
            first = self._chain(start, Edge(shared[-1], self.graph.nodes[shared[-1]].shape))
            start = shared[-1]
        else:
            first = Chain((), self.graph.nodes[last].shape)
        shortcut = self._chain(start, self._edge(joins[0].node, joins[0].stream)) if is_projected else None
        branches = [
            ResidualBranch(self.graph.nodes[join.node], self._chain(start, self._edge(join.node, join.branch)))
            for join in joins
        ]
        return ResidualItem(first, tuple(branches), shortcut)

    def _edge(self, node: int, source: int) -> Edge:
        return next(edge for edge in self.graph.nodes[node].inputs if edge.source == source)
