"""The shape of a drawing: a line of boxes, branches that leave it and come back, frames around what belongs together.

Made from the graph by its dominators: a node that all ways lead through stands on the line, and what lies between two
of these stands beside it, in lanes. Whatever the graph, every node is drawn once; what cannot be drawn in place is
referred to by name.
"""

from dataclasses import dataclass, field

from normscope.drawing.graph import DataflowGraph, Edge, GraphNode
from normscope.drawing.residual_joins import ResidualAdd, find_joins
from normscope.tracing.trace import Shape


@dataclass(frozen=True)
class NodeItem:
    """A node on the line; `input_shape` is the shape at the arrow into it, None where a line begins with it."""

    node: GraphNode
    input_shape: Shape | None


@dataclass(frozen=True)
class ReferenceItem:
    """What a lane begins with that is drawn elsewhere."""

    node: GraphNode


@dataclass(frozen=True)
class MergeItem:
    """A function of several tensors: lanes that end in one node."""

    node: GraphNode
    lanes: "tuple[Chain, ...]"


@dataclass(frozen=True)
class ResidualBranch:
    """A way from the stream back to it, and the addition where it joins."""

    join: GraphNode
    chain: "Chain"


@dataclass(frozen=True)
class ResidualItem:
    """The stream goes straight on, and branches leave it in one place, through `shared` boxes first, and join it."""

    shared: "Chain"
    branches: tuple[ResidualBranch, ...]


@dataclass(frozen=True)
class FrameItem:
    """A part of the line with a name: a module that is drawn open, so many times; a block, or a part of one."""

    call: int
    times: int
    chain: "Chain"
    input_shape: Shape | None
    parameters: int
    is_part: bool = False


ChainItem = NodeItem | ReferenceItem | MergeItem | ResidualItem | FrameItem


@dataclass(frozen=True)
class Chain:
    """Items from top to bottom; `output_shape` is the shape at the arrow that leaves the last."""

    items: tuple[ChainItem, ...]
    output_shape: Shape

    @property
    def first(self) -> Shape | None:
        """The shape at the first arrow; None if there is none, or if it differs between lanes."""
        if not self.items:
            return self.output_shape
        return input_shape(self.items[0])


def input_shape(item: ChainItem) -> Shape | None:
    """The shape at the arrow into an item."""
    if isinstance(item, NodeItem | FrameItem):
        return item.input_shape
    if isinstance(item, ReferenceItem):
        return None
    if isinstance(item, ResidualItem):
        return item.branches[0].chain.first if not item.shared.items else item.shared.first
    shapes = {lane.first for lane in item.lanes if _hangs(lane)}
    return shapes.pop() if len(shapes) == 1 else None


def _hangs(lane: Chain) -> bool:
    """Whether a lane begins at the line, and not with something of its own."""
    return not has_own_source(lane)


def has_own_source(chain: Chain) -> bool:
    """Whether a lane has its own beginning: a source, or a reference to what is drawn elsewhere."""
    if not chain.items:
        return False
    first = chain.items[0]
    if isinstance(first, ReferenceItem):
        return True
    if isinstance(first, MergeItem):
        return all(has_own_source(lane) for lane in first.lanes)
    return isinstance(first, NodeItem | FrameItem) and first.input_shape is None


def build_chain(graph: DataflowGraph) -> Chain:
    """The line from a model's input to its result."""
    return _ChainBuilder(graph).whole()


@dataclass
class _ChainBuilder:
    graph: DataflowGraph
    joins: dict[int, ResidualAdd] = field(init=False)
    drawn: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.joins = find_joins(self.graph)

    def whole(self) -> Chain:
        return self._from_its_source(self.graph.output)

    def _from_its_source(self, end: Edge) -> Chain:
        """The line that ends here, from where its main way begins."""
        source = self._source(end.source)
        if source in self.drawn:
            return self._chain(source, end)
        self.drawn.add(source)
        rest = self._chain(source, end)
        return Chain((NodeItem(self.graph.nodes[source], None), *rest.items), rest.output_shape)

    def _source(self, index: int) -> int:
        """Where the main way to a node begins: against the stream, or against the first of several inputs."""
        while self.graph.nodes[index].inputs:
            join = self.joins.get(index)
            index = self.graph.nodes[index].inputs[0].source if join is None else join.stream
        return index

    def _chain(self, start: int, end: Edge) -> Chain:
        """From a node, which is drawn already, to what arrives at the end."""
        path = self._dominators(start, end.source)
        known = [place for place, index in enumerate(path) if index in self.drawn]
        items: list[ChainItem] = []
        if known:  # another lane has drawn it
            items.append(ReferenceItem(self.graph.nodes[path[known[-1]]]))
            start, path = path[known[-1]], path[known[-1] + 1 :]
        for index in path:
            items.append(self._item(start, index))
            start = index
        return Chain(tuple(items), end.shape)

    def _dominators(self, start: int, end: int) -> list[int]:
        """The nodes that every way from start to end leads through, without the start."""
        if start == end:
            return []
        ancestors = self.graph.ancestors
        region = [n for n in sorted(ancestors[end] | {end}) if start in ancestors[n]]
        above: dict[int, int] = {}
        depth = {start: 0}
        for index in region:
            meeting: int | None = None
            for edge in self.graph.nodes[index].inputs:
                other = edge.source
                if other not in depth:
                    continue
                if meeting is None:
                    meeting = other
                while meeting != other:
                    if depth[meeting] >= depth[other]:
                        meeting = above[meeting]
                    else:
                        other = above[other]
            assert meeting is not None, "a node of the region has an input in it"
            above[index], depth[index] = meeting, depth[meeting] + 1
        path = [end]
        while above[path[-1]] != start:
            path.append(above[path[-1]])
        return path[::-1]

    def _item(self, start: int, index: int) -> ChainItem:
        """A node on the line, and what lies between it and the one before."""
        self.drawn.add(index)
        node = self.graph.nodes[index]
        if index in self.joins and start in (
            self.graph.ancestors[self.joins[index].stream] | {self.joins[index].stream}
        ):
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
        return self._from_its_source(edge)

    def _residual(self, start: int, last: int) -> ResidualItem | None:
        """All the additions between two nodes of the line that carry on the same stream."""
        path, at = [], last
        while at != start:
            if at not in self.joins:
                return None
            path.append(self.joins[at])
            at = self.joins[at].stream
        path.reverse()
        self.drawn.update(join.node for join in path)
        ways = [self._dominators(start, join.branch) for join in path]
        shared = [n for n in ways[0] if all(n in way for way in ways)] if len(ways) > 1 else []
        if shared:
            first = self._chain(start, Edge(shared[-1], self.graph.nodes[shared[-1]].shape))
            start = shared[-1]
        else:
            first = Chain((), self.graph.nodes[last].shape)
        branches = []
        for join in path:
            node = self.graph.nodes[join.node]
            edge = next(edge for edge in node.inputs if edge.source == join.branch)
            branches.append(ResidualBranch(node, self._chain(start, edge)))
        return ResidualItem(first, tuple(branches))
