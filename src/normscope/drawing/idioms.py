"""Steps that people know by one name, taken together: a formula on every number, attention written out, rotation."""

from dataclasses import replace

from normscope.drawing.graph import Edge, Graph, Node, Sight
from normscope.drawing.residual_joins import is_join
from normscope.tracing.function_kinds import ELEMENTWISE, PRODUCTS, formula

_TURNED = frozenset({"mul", "neg", "cat", "add", "sub", "stack"})


def with_idioms(graph: Graph) -> Graph:
    """The graph with one box for each idiom. Boxes are only taken together if no one looks in between."""
    for number in list(graph.nodes):
        if number in graph.nodes and graph.nodes[number].operation == "softmax":
            graph = _attention(graph, graph.nodes[number])
    for number in reversed(list(graph.nodes)):  # the largest region first: it ends last
        if number in graph.nodes:
            graph = _rotation(graph, graph.nodes[number])
    for number in list(graph.nodes):
        node = graph.nodes[number]
        if _is_on_each(node):
            graph = _formula(graph, node)
    return graph


def _is_on_each(node: Node) -> bool:
    """Whether it is a function of one tensor, number by number, in which nothing is learnt."""
    return node.operation in ELEMENTWISE and len(node.inputs) == 1 and not node.parameters


def _formula(graph: Graph, node: Node) -> Graph:
    """Take a function together with the one before it: relu and then a square are relu(x)²."""
    before = graph.nodes[node.inputs[0].source]
    alone = len(graph.users[before.number]) == 1 and graph.result.source != before.number
    if not (alone and before.call == node.call and (_is_on_each(before) or before.words) and not before.parameters):
        return graph
    if before.operation not in ELEMENTWISE and before.operation != "formula":
        return graph
    inner = before.words or formula(before.operation, "x", before.numbers)
    words = formula(node.operation, inner, node.numbers)
    return graph.merged(
        [before.number, node.number], replace(node, operation="formula", inputs=before.inputs, words=words, numbers=())
    )


def _attention(graph: Graph, softmax: Node) -> Graph:
    """softmax(q k^T) v, written out: two products and what lies between them."""
    group, at = [softmax.number], softmax
    while len(at.inputs) == 1 and at.operation not in PRODUCTS:
        at = graph.nodes[at.inputs[0].source]
        group.append(at.number)
        if at.call != softmax.call or len(graph.users[at.number]) != 1:
            return graph
    after = softmax
    while len(graph.users[after.number]) == 1 and after.operation not in PRODUCTS:
        after = graph.nodes[graph.users[after.number][0]]
        group.append(after.number)
    is_whole = at.operation in PRODUCTS and after.operation in PRODUCTS and after.call == softmax.call
    if not is_whole or len(at.inputs) != 2 or len(after.inputs) != 2:
        return graph
    values = [edge for edge in after.inputs if edge.source not in group]
    queries, between = at.inputs[0].shape, {graph.nodes[number].operation for number in group}
    sight = Sight(queries[-3] if len(queries) > 3 else None, is_masked=bool(between & {"add", "masked_fill", "where"}))
    whole = replace(after, operation="attention", inputs=(*at.inputs, *values), sight=sight)
    return graph.merged(group, whole)


def _rotation(graph: Graph, last: Node) -> Graph:
    """x cos + turn(x) sin, written out: a part between one node and another in which halves are turned."""
    if last.operation not in ("add", "cat", "stack") or len(last.inputs) < 2 or is_join(graph, last):
        return graph
    group, entries = {last.number}, []
    waiting = list(last.inputs)
    while waiting:
        edge = waiting.pop()
        node = graph.nodes[edge.source]
        inside = node.operation in _TURNED and node.call == last.call and not node.parameters
        if inside:
            group.add(node.number)
            waiting += node.inputs
        else:
            entries.append(edge)
    operations = [graph.nodes[number].operation for number in group]
    turns = ("neg" in operations or "sub" in operations) and ("cat" in operations or "stack" in operations)
    closed = all(set(graph.users[number]) <= group for number in group - {last.number})
    if not (turns and operations.count("mul") >= 2 and closed and len({edge.source for edge in entries}) == 1):
        return graph
    whole = Edge(entries[0].source, last.shape)
    return graph.merged(group, replace(last, operation="rotary", inputs=(whole,)))
