"""Where a branch joins the residual stream: found in the flow of data, not by anyone's name."""

from dataclasses import dataclass

from normscope.drawing.graph import DataflowGraph, GraphNode


@dataclass(frozen=True)
class ResidualAdd:
    """An addition of the stream and a branch that came from it; the numbers of the nodes."""

    node: int
    stream: int
    branch: int


def find_joins(graph: DataflowGraph) -> dict[int, ResidualAdd]:
    """All the joins, by the number of the addition."""
    found = {index: join_at(graph, node) for index, node in graph.nodes.items()}
    return {index: join for index, join in found.items() if join is not None}


def is_join(graph: DataflowGraph, node: GraphNode) -> bool:
    return join_at(graph, node) is not None


def join_at(graph: DataflowGraph, node: GraphNode) -> ResidualAdd | None:
    """The join at a node, if it adds two equal shapes of which one comes from the other.

    In x + attention(x) + mlp(x) the second addition joins the same stream: mlp(x) does not come from the first sum,
    but from what that one carried on.
    """
    if node.operation != "add" or len(node.inputs) != 2 or node.parameters:
        return None
    one, other = node.inputs
    if one.shape != other.shape:
        return None
    for stream, branch in ((one.source, other.source), (other.source, one.source)):
        at: int | None = stream
        while at is not None:
            if at in graph.ancestors[branch]:
                return ResidualAdd(node.index, stream, branch)
            before = join_at(graph, graph.nodes[at])
            at = None if before is None else before.stream
    return None
