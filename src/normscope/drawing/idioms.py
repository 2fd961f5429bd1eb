"""Steps that people know by one name, taken together: a formula on every number, attention written out, rotation."""

from dataclasses import replace

from normscope.drawing.graph import AttentionInfo, DataflowGraph, Edge, GraphNode
from normscope.drawing.residual_joins import is_join
from normscope.tracing.function_kinds import ELEMENTWISE, MATMULS, formula

_TURNED = frozenset({"mul", "neg", "cat", "add", "sub", "stack"})


def collapse_idioms(graph: DataflowGraph) -> DataflowGraph:
    """The graph with one box for each idiom. Boxes are only taken together if no one looks in between."""
    for index in list(graph.nodes):
        if index in graph.nodes and graph.nodes[index].operation == "softmax":
            graph = _attention(graph, graph.nodes[index])
    for index in reversed(list(graph.nodes)):  # the largest region first: it ends last
        if index in graph.nodes:
            graph = _rotation(graph, graph.nodes[index])
    for index in list(graph.nodes):
        node = graph.nodes[index]
        if _is_on_each(node):
            graph = _formula(graph, node)
    return graph


def _is_on_each(node: GraphNode) -> bool:
    """Whether it is a function of one tensor, number by number, in which nothing is learnt."""
    return node.operation in ELEMENTWISE and len(node.inputs) == 1 and not node.parameters


def _formula(graph: DataflowGraph, node: GraphNode) -> DataflowGraph:
    """Take a function together with the one before it: relu and then a square are relu(x)²."""
    before = graph.nodes[node.inputs[0].source]
    alone = len(graph.consumers[before.index]) == 1 and graph.output.source != before.index
    if not (alone and before.call == node.call and (_is_on_each(before) or before.text) and not before.parameters):
        return graph
    if before.operation not in ELEMENTWISE and before.operation != "formula":
        return graph
    inner = before.text or formula(before.operation, "x", before.scalar_args)
    text = formula(node.operation, inner, node.scalar_args)
    return graph.with_merged(
        [before.index, node.index], replace(node, operation="formula", inputs=before.inputs, text=text, scalar_args=())
    )


def _attention(graph: DataflowGraph, softmax: GraphNode) -> DataflowGraph:
    """softmax(q k^T) v, written out: two products and what lies between them."""
    group, at = [softmax.index], softmax
    while len(at.inputs) == 1 and at.operation not in MATMULS:
        at = graph.nodes[at.inputs[0].source]
        group.append(at.index)
        if at.call != softmax.call or len(graph.consumers[at.index]) != 1:
            return graph
    after = softmax
    while len(graph.consumers[after.index]) == 1 and after.operation not in MATMULS:
        after = graph.nodes[graph.consumers[after.index][0]]
        group.append(after.index)
    is_whole = at.operation in MATMULS and after.operation in MATMULS and after.call == softmax.call
    if not is_whole or len(at.inputs) != 2 or len(after.inputs) != 2:
        return graph
    values = [edge for edge in after.inputs if edge.source not in group]
    queries, between = at.inputs[0].shape, {graph.nodes[index].operation for index in group}
    attention = AttentionInfo(
        queries[-3] if len(queries) > 3 else None, is_masked=bool(between & {"add", "masked_fill", "where"})
    )
    whole = replace(after, operation="attention", inputs=(*at.inputs, *values), attention=attention)
    return graph.with_merged(group, whole)


def _rotation(graph: DataflowGraph, last: GraphNode) -> DataflowGraph:
    """x cos + turn(x) sin, written out: a part between one node and another in which halves are turned."""
    if last.operation not in ("add", "cat", "stack") or len(last.inputs) < 2 or is_join(graph, last):
        return graph
    group, entries = {last.index}, []
    waiting = list(last.inputs)
    while waiting:
        edge = waiting.pop()
        node = graph.nodes[edge.source]
        inside = node.operation in _TURNED and node.call == last.call and not node.parameters
        if inside:
            group.add(node.index)
            waiting += node.inputs
        else:
            entries.append(edge)
    operations = [graph.nodes[index].operation for index in group]
    turns = ("neg" in operations or "sub" in operations) and ("cat" in operations or "stack" in operations)
    closed = all(set(graph.consumers[index]) <= group for index in group - {last.index})
    if not (turns and operations.count("mul") >= 2 and closed and len({edge.source for edge in entries}) == 1):
        return graph
    whole = Edge(entries[0].source, last.shape)
    return graph.with_merged(group, replace(last, operation="rotary", inputs=(whole,)))
