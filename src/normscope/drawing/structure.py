"""The shape of a drawing: a line of boxes, branches that leave it and come back, frames around what belongs together.

Made from the graph by its dominators: a node that all ways lead through stands on the line, and what lies between two
of these stands beside it, in lanes. Whatever the graph, every node is drawn once; what cannot be drawn in place is
referred to by name.
"""

from dataclasses import dataclass, field

from normscope.drawing.graph import Edge, Graph, Node
from normscope.drawing.residual_joins import Join, joins_of
from normscope.tracing.trace import Shape


@dataclass(frozen=True)
class Box:
    """A node on the line; `arrives` is the shape at the arrow into it, None where a line begins with it."""

    node: Node
    arrives: Shape | None


@dataclass(frozen=True)
class Reference:
    """What a lane begins with that is drawn elsewhere."""

    node: Node


@dataclass(frozen=True)
class Merge:
    """A function of several tensors: lanes that end in one node."""

    node: Node
    lanes: "tuple[Line, ...]"


@dataclass(frozen=True)
class Branch:
    """A way from the stream back to it, and the addition where it joins."""

    join: Node
    line: "Line"


@dataclass(frozen=True)
class Residual:
    """The stream goes straight on, and branches leave it in one place, through `shared` boxes first, and join it."""

    shared: "Line"
    branches: tuple[Branch, ...]


@dataclass(frozen=True)
class Frame:
    """A part of the line with a name: a module that is drawn open, so many times; a block, or a part of one."""

    call: int
    times: int
    line: "Line"
    arrives: Shape | None
    parameters: int
    is_part: bool = False


Item = Box | Reference | Merge | Residual | Frame


@dataclass(frozen=True)
class Line:
    """Items from top to bottom; `leaves` is the shape at the arrow that leaves the last."""

    items: tuple[Item, ...]
    leaves: Shape

    @property
    def first(self) -> Shape | None:
        """The shape at the first arrow; None if there is none, or if it differs between lanes."""
        if not self.items:
            return self.leaves
        return arrives(self.items[0])


def arrives(item: Item) -> Shape | None:
    """The shape at the arrow into an item."""
    if isinstance(item, Box | Frame):
        return item.arrives
    if isinstance(item, Reference):
        return None
    if isinstance(item, Residual):
        return item.branches[0].line.first if not item.shared.items else item.shared.first
    shapes = {lane.first for lane in item.lanes if _hangs(lane)}
    return shapes.pop() if len(shapes) == 1 else None


def _hangs(lane: Line) -> bool:
    """Whether a lane begins at the line, and not with something of its own."""
    return not begins_alone(lane)


def begins_alone(line: Line) -> bool:
    """Whether a lane has its own beginning: a source, or a reference to what is drawn elsewhere."""
    if not line.items:
        return False
    first = line.items[0]
    if isinstance(first, Reference):
        return True
    if isinstance(first, Merge):
        return all(begins_alone(lane) for lane in first.lanes)
    return isinstance(first, Box | Frame) and first.arrives is None


def build_line(graph: Graph) -> Line:
    """The line from a model's input to its result."""
    return _Weaver(graph).whole()


@dataclass
class _Weaver:
    graph: Graph
    joins: dict[int, Join] = field(init=False)
    drawn: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.joins = joins_of(self.graph)

    def whole(self) -> Line:
        return self._from_its_source(self.graph.result)

    def _from_its_source(self, end: Edge) -> Line:
        """The line that ends here, from where its main way begins."""
        source = self._source(end.source)
        if source in self.drawn:
            return self._line(source, end)
        self.drawn.add(source)
        rest = self._line(source, end)
        return Line((Box(self.graph.nodes[source], None), *rest.items), rest.leaves)

    def _source(self, number: int) -> int:
        """Where the main way to a node begins: against the stream, or against the first of several inputs."""
        while self.graph.nodes[number].inputs:
            join = self.joins.get(number)
            number = self.graph.nodes[number].inputs[0].source if join is None else join.stream
        return number

    def _line(self, start: int, end: Edge) -> Line:
        """From a node, which is drawn already, to what arrives at the end."""
        chain = self._dominators(start, end.source)
        known = [place for place, number in enumerate(chain) if number in self.drawn]
        items: list[Item] = []
        if known:  # another lane has drawn it
            items.append(Reference(self.graph.nodes[chain[known[-1]]]))
            start, chain = chain[known[-1]], chain[known[-1] + 1 :]
        for number in chain:
            items.append(self._item(start, number))
            start = number
        return Line(tuple(items), end.shape)

    def _dominators(self, start: int, end: int) -> list[int]:
        """The nodes that every way from start to end leads through, without the start."""
        if start == end:
            return []
        ancestors = self.graph.ancestors
        region = [n for n in sorted(ancestors[end] | {end}) if start in ancestors[n]]
        above: dict[int, int] = {}
        depth = {start: 0}
        for number in region:
            meeting: int | None = None
            for edge in self.graph.nodes[number].inputs:
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
            above[number], depth[number] = meeting, depth[meeting] + 1
        chain = [end]
        while above[chain[-1]] != start:
            chain.append(above[chain[-1]])
        return chain[::-1]

    def _item(self, start: int, number: int) -> Item:
        """A node on the line, and what lies between it and the one before."""
        self.drawn.add(number)
        node = self.graph.nodes[number]
        if number in self.joins and start in (
            self.graph.ancestors[self.joins[number].stream] | {self.joins[number].stream}
        ):
            residual = self._residual(start, number)
            if residual is not None:
                return residual
        if len(node.inputs) == 1:
            return Box(node, node.inputs[0].shape)
        return Merge(node, tuple(self._lane(start, edge) for edge in node.inputs))

    def _lane(self, start: int, edge: Edge) -> Line:
        if start == edge.source or start in self.graph.ancestors[edge.source]:
            return self._line(start, edge)
        if edge.source in self.drawn:
            return Line((Reference(self.graph.nodes[edge.source]),), edge.shape)
        return self._from_its_source(edge)

    def _residual(self, start: int, last: int) -> Residual | None:
        """All the additions between two nodes of the line that carry on the same stream."""
        chain, at = [], last
        while at != start:
            if at not in self.joins:
                return None
            chain.append(self.joins[at])
            at = self.joins[at].stream
        chain.reverse()
        self.drawn.update(join.node for join in chain)
        ways = [self._dominators(start, join.branch) for join in chain]
        shared = [n for n in ways[0] if all(n in way for way in ways)] if len(ways) > 1 else []
        if shared:
            first = self._line(start, Edge(shared[-1], self.graph.nodes[shared[-1]].shape))
            start = shared[-1]
        else:
            first = Line((), self.graph.nodes[last].shape)
        branches = []
        for join in chain:
            node = self.graph.nodes[join.node]
            edge = next(edge for edge in node.inputs if edge.source == join.branch)
            branches.append(Branch(node, self._line(start, edge)))
        return Residual(first, tuple(branches))
