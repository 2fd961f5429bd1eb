"""Find residual additions in the dataflow graph, whatever the modules are called."""

from dataclasses import dataclass

from normscope.drawing.graph import DataflowGraph, GraphNode
from normscope.tracing.projection_shortcuts import find_projection_shortcut


@dataclass(frozen=True)
class ResidualAdd:
    """An addition of the residual stream and a branch, by node index."""

    node: int
    stream: int
    branch: int
    fork: int | None = None
    """The node that the branch and the stream read, if the stream goes through a projection shortcut."""


def find_joins(graph: DataflowGraph) -> dict[int, ResidualAdd]:
    """Return all residual additions, by the index of the addition."""
    found = {index: join_at(graph, node) for index, node in graph.nodes.items()}
    return {index: join for index, join in found.items() if join is not None}


def join_at(graph: DataflowGraph, node: GraphNode) -> ResidualAdd | None:
    """Return the residual addition at a node; None if it is none.

    It adds two tensors of equal shape, of which one is computed from the other, or of which one is a projection
    shortcut. In x + attention(x) + mlp(x) the second addition joins the same stream: mlp(x) is not computed from the
    first sum, but from the stream of the first sum.
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
    shortcut = find_projection_shortcut(graph, one.source, other.source)
    return None if shortcut is None else ResidualAdd(node.index, shortcut.shortcut, shortcut.branch, shortcut.fork)
