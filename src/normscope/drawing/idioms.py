"""Recognize what nodes do together, whatever the modules are called.

Residual additions are found; elementwise formulas, attention written as matmuls and rotary embeddings are collapsed.
"""

from dataclasses import dataclass, replace

from normscope.drawing.graph import DataflowGraph, Edge, GraphNode, describe_attention
from normscope.tracing.function_kinds import ADDED_MATMULS, ELEMENTWISE, MATMULS, formula
from normscope.tracing.projection_shortcuts import find_projection_shortcut

_PRODUCTS = MATMULS | ADDED_MATMULS | {"einsum"}
_ROTARY = frozenset({"mul", "neg", "cat", "add", "sub", "stack"})


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


def collapse_idioms(graph: DataflowGraph) -> DataflowGraph:
    """Replace each idiom by one node. A group is only collapsed if nothing else reads its intermediate results."""
    for index in list(graph.nodes):
        if index in graph.nodes and graph.nodes[index].operation == "softmax":
            graph = _attention(graph, graph.nodes[index])
    for index in reversed(list(graph.nodes)):  # the largest group ends last
        if index in graph.nodes:
            graph = _rotation(graph, graph.nodes[index])
    for index in list(graph.nodes):
        if _is_elementwise(graph.nodes[index]):
            graph = _formula(graph, graph.nodes[index])
    return graph


def _is_elementwise(node: GraphNode) -> bool:
    """Whether the node is an elementwise function of one tensor, without parameters."""
    return node.operation in ELEMENTWISE and len(node.inputs) == 1 and not node.parameters


def _formula(graph: DataflowGraph, node: GraphNode) -> DataflowGraph:
    """Collapse a function and the one before it: relu followed by square becomes relu(x)²."""
    before = graph.nodes[node.inputs[0].source]
    alone = len(graph.consumers[before.index]) == 1 and graph.output.source != before.index
    if not (alone and before.call == node.call and (before.operation == "formula" or _is_elementwise(before))):
        return graph
    inner = before.text or formula(before.operation, "x", before.scalar_args)
    text = formula(node.operation, inner, node.scalar_args)
    role = "nonlinear" if before.role == "nonlinear" else node.role
    merged = replace(node, operation="formula", inputs=before.inputs, text=text, scalar_args=(), role=role)
    return graph.with_merged([before.index, node.index], merged)


def _attention(graph: DataflowGraph, softmax: GraphNode) -> DataflowGraph:
    """Collapse softmax(q k^T) v: two matrix products and the nodes between them."""
    group, at = [softmax.index], softmax
    while len(at.inputs) == 1 and at.operation not in _PRODUCTS:
        at = graph.nodes[at.inputs[0].source]
        group.append(at.index)
        if at.call != softmax.call or len(graph.consumers[at.index]) != 1:
            return graph
    after = softmax
    while len(graph.consumers[after.index]) == 1 and after.operation not in _PRODUCTS:
        after = graph.nodes[graph.consumers[after.index][0]]
        group.append(after.index)
    is_whole = at.operation in _PRODUCTS and after.operation in _PRODUCTS and after.call == softmax.call
    if not is_whole or len(at.inputs) != 2 or len(after.inputs) != 2:
        return graph
    values = [edge for edge in after.inputs if edge.source not in group]
    queries, between = at.inputs[0].shape, {graph.nodes[index].operation for index in group}
    heads = queries[-3] if len(queries) > 3 else graph.call_of(softmax).heads
    is_masked = bool(between & {"add", "masked_fill", "where", *ADDED_MATMULS})
    described = describe_attention(heads, is_masked=is_masked)
    inputs = (*at.inputs, *values)
    whole = replace(after, operation="attention", inputs=inputs, attention=described, role="nonlinear")
    return graph.with_merged(group, whole)


def _rotation(graph: DataflowGraph, last: GraphNode) -> DataflowGraph:
    """Collapse x cos + rotate_half(x) sin: a group with one input that multiplies, negates and concatenates."""
    if last.operation not in ("add", "cat", "stack") or len(last.inputs) < 2 or join_at(graph, last) is not None:
        return graph
    group, entries = {last.index}, []
    waiting = list(last.inputs)
    while waiting:
        edge = waiting.pop()
        node = graph.nodes[edge.source]
        if node.operation in _ROTARY and node.call == last.call and not node.parameters:
            group.add(node.index)
            waiting += node.inputs
        else:
            entries.append(edge)
    operations = [graph.nodes[index].operation for index in group]
    rotates = {"neg", "sub"}.intersection(operations) and {"cat", "stack"}.intersection(operations)
    closed = all(set(graph.consumers[index]) <= group for index in group - {last.index})
    if not (rotates and operations.count("mul") >= 2 and closed and len({edge.source for edge in entries}) == 1):
        return graph
    whole = Edge(entries[0].source, last.shape)
    return graph.with_merged(group, replace(last, operation="rotary", inputs=(whole,)))
