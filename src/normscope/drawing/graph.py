"""Build the dataflow graph of a trace: one node for each leaf module, function and collapsed module.

Views have no nodes: they change the shape on an edge. Constants, such as masks and position tables, have none either,
and neither do nodes that the output does not depend on.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from normscope.drawing.reshaped_inputs import ReshapedInput, reshaped_inputs
from normscope.render.formatting import pluralize
from normscope.tracing.function_kinds import ATTENTION_FUNCTIONS, VIEWS, Role, role_of
from normscope.tracing.module_kinds import has_norm_name
from normscope.tracing.trace import ModelTrace, ModuleCall, Op, Shape, TensorRef


@dataclass(frozen=True)
class Edge:
    """An edge from a node, with the shape that arrives."""

    source: int
    shape: Shape


@dataclass(frozen=True)
class GraphNode:
    """A box of the drawing. A node has a larger index than the nodes it depends on."""

    index: int
    operation: str
    """The name of a function, "module" for a module, or "input" for an input of the model."""
    call: int
    """The module call that the node is, or that it is part of."""
    inputs: tuple[Edge, ...]
    shape: Shape
    parameters: frozenset[str] = frozenset()
    text: str = ""
    """The label, if it is not the name."""
    scalar_args: tuple[float | None, ...] = ()
    attention: str = ""
    """The number of heads of an attention, if known, and which tokens a query may attend to."""
    role: Role = "other"
    """What the node does to its input; see `normscope.tracing.projection_shortcuts`."""

    @property
    def is_module(self) -> bool:
        return self.operation == "module"


@dataclass(frozen=True)
class DataflowGraph:
    """The nodes and edges from a model's inputs to its output."""

    trace: ModelTrace
    nodes: Mapping[int, GraphNode]
    output: Edge

    @cached_property
    def consumers(self) -> Mapping[int, tuple[int, ...]]:
        """For each node, the nodes that read it, one entry for each edge."""
        found: dict[int, list[int]] = {index: [] for index in self.nodes}
        for node in self.nodes.values():
            for edge in node.inputs:
                found[edge.source].append(node.index)
        return {index: tuple(consumers) for index, consumers in found.items()}

    @cached_property
    def ancestors(self) -> Mapping[int, frozenset[int]]:
        """For each node, all nodes that it depends on."""
        found: dict[int, frozenset[int]] = {}
        for index in sorted(self.nodes):
            sources = [edge.source for edge in self.nodes[index].inputs]
            found[index] = frozenset(sources).union(*(found[source] for source in sources))
        return found

    def inputs_of(self, tensor: int) -> Sequence[int]:
        """Return the nodes that a node reads."""
        return [edge.source for edge in self.nodes[tensor].inputs]

    def role_of(self, tensor: int) -> Role:
        """Return the role of a node. A node that reads only a slice of another is no projection of it."""
        node = self.nodes[tensor]
        reads_slice = any(math.prod(edge.shape) < math.prod(self.nodes[edge.source].shape) for edge in node.inputs)
        return "other" if reads_slice and node.role in ("linear", "pass") else node.role

    def call_of(self, node: GraphNode) -> ModuleCall:
        return self.trace.calls[node.call]

    def with_merged(self, group: Collection[int], into: GraphNode) -> "DataflowGraph":
        """Return the graph with a group of nodes replaced by one node, which has the index of the last of them."""
        kept = {index: node for index, node in self.nodes.items() if index not in group}
        return replace(self, nodes=dict(sorted({**kept, into.index: into}.items())))


def build_graph(trace: ModelTrace, closed: Collection[int] = (), *, is_whole: bool = True) -> DataflowGraph:
    """Build the graph of a trace.

    Args:
        trace: the trace.
        closed: module calls that become one node each, as leaf modules do.
        is_whole: whether the trace is of the whole model, so that the graph has to show its inputs.
    """
    return _GraphBuilder(trace, frozenset(closed), is_whole).graph()


class _GraphBuilder:
    def __init__(self, trace: ModelTrace, closed: frozenset[int], is_whole: bool) -> None:
        self.trace = trace
        self.closed = closed | {call.index for call in trace.calls if call.is_leaf}
        # The box of each op: its own index, or minus the index of the outermost closed call.
        self.box = [self._box(op) for op in trace.ops]
        self.depends_on_input = trace.depends_on_input
        self.members: dict[int, list[Op]] = {}
        for op in trace.needed_ops:
            self.members.setdefault(self.box[op.index], []).append(op)
        self.reshaped: dict[int, ReshapedInput] = {}
        self.carries = self._carrying()
        if is_whole:
            of_boxes = reshaped_inputs(trace, lambda op: not self._is_drawn(self.box[op.index]))
            self.reshaped = {self.box[index]: reshaped for index, reshaped in of_boxes.items()}
        self.inputs = {value.argument: -i - 1 for i, value in enumerate(trace.inputs)}

    def _box(self, op: Op) -> int:
        outermost = next((call for call in self.trace.call_stacks[op.call] if call in self.closed), None)
        return op.index if outermost is None else -outermost

    def graph(self) -> DataflowGraph:
        found = [
            GraphNode(self.inputs[value.argument], "input", 0, (), value.shape, text=value.argument or "")
            for value in self.trace.inputs
        ]
        for box, ops in self.members.items():
            if self._is_drawn(box):
                found.append(self._module(-box, ops) if self._is_call(box) else self._function(ops[0]))
        nodes = {node.index: node for node in sorted(found, key=lambda node: node.index)}
        output = self._edge(self.trace.output) or Edge(min(nodes, default=-1), self.trace.output.shape)
        used = {output.source} | {edge.source for node in found for edge in node.inputs}
        nodes = {index: node for index, node in nodes.items() if index >= 0 or index in used}
        return DataflowGraph(self.trace, nodes, output)

    def _is_call(self, box: int) -> bool:
        return box < 0  # the model itself, call 0, is never closed

    def _is_drawn(self, box: int) -> bool:
        """Whether a box computes something from the model's inputs, or is a module with parameters."""
        if box not in self.members:
            return False
        if box in self.reshaped:
            return True
        ops = self.members[box]
        if self._is_call(box):
            has_parameters = any(value.parameter for op in ops for value in op.inputs)
            computes = any(op.function not in VIEWS for op in ops)
            return computes and (has_parameters or any(self.depends_on_input[op.index] for op in ops))
        return self.depends_on_input[box] and not self._is_view(ops[0])

    def _is_view(self, op: Op) -> bool:
        carried = [value for value in op.inputs if self._is_carried(value)]
        if op.function == "cat":  # with an empty cache
            return len(carried) == 1 and carried[0].shape == op.shape and not self._parameters(op.inputs)
        return op.function in VIEWS and len(carried) <= 1

    def _is_carried(self, value: TensorRef) -> bool:
        """Whether the tensor comes from a box or from an input of the model."""
        return value.argument is not None or (value.op is not None and self.carries[value.op])

    def _carrying(self) -> list[bool]:
        """For each op, whether its output comes from an input of the model or from a module with parameters."""
        carries: list[bool] = []
        for op in self.trace.ops:
            from_before = any(v.op is not None and carries[v.op] for v in op.inputs)
            is_drawn = self._is_drawn_call(self.box[op.index])
            carries.append(self.depends_on_input[op.index] or from_before or is_drawn)
        return carries

    def _is_drawn_call(self, box: int) -> bool:
        return self._is_call(box) and self._is_drawn(box)

    def _edge(self, value: TensorRef) -> Edge | None:
        """Return the edge to a tensor, skipping views; None for constants and parameters."""
        at: TensorRef | None = value
        while at is not None and at.argument is None and at.op is not None:
            box = self.box[at.op]
            if self._is_drawn(box):
                return Edge(self.members[box][-1].index, value.shape)
            at = next((v for v in self.trace.ops[at.op].inputs if self._is_carried(v)), None)
        return None if at is None or at.argument is None else Edge(self.inputs[at.argument], value.shape)

    def _parameters(self, values: Iterable[TensorRef]) -> frozenset[str]:
        """Return the parameters among these tensors, or that these tensors are computed from."""
        found, waiting = set(), list(values)
        while waiting:
            value = waiting.pop()
            if value.parameter is not None:
                found.add(value.parameter)
            elif value.op is not None and not self.depends_on_input[value.op]:
                waiting += () if self._is_drawn_call(self.box[value.op]) else self.trace.ops[value.op].inputs
        return frozenset(found)

    def _function(self, op: Op) -> GraphNode:
        reshaped = self.reshaped.get(op.index)
        if reshaped is not None:
            entry = Edge(self.inputs[reshaped.argument.argument], reshaped.argument.shape)
            text = ", ".join(reshaped.views)
            return GraphNode(op.index, op.function, op.call, (entry,), op.shape, text=text)
        return GraphNode(
            index=op.index,
            operation=op.function,
            call=op.call,
            inputs=tuple(edge for value in op.inputs if (edge := self._edge(value)) is not None),
            shape=op.shape,
            parameters=self._parameters(op.inputs),
            scalar_args=op.scalar_args,
            attention=_attention(op),
            role=role_of([op.function]),
        )

    def _module(self, call: int, ops: list[Op]) -> GraphNode:
        inside, module = {op.index for op in ops}, self.trace.calls[call]
        values = [value for op in ops for value in op.inputs]
        edges = dict.fromkeys(self._edge(value) for value in values if value.op is None or value.op not in inside)
        return GraphNode(
            index=ops[-1].index,
            operation="module",
            call=call,
            inputs=tuple(edge for edge in edges if edge is not None),
            shape=next((op.shape for op in reversed(ops) if op.index in self._used_outside), ops[-1].shape),
            parameters=self._parameters(values),
            attention=next((_attention(op) for op in ops if op.function in ATTENTION_FUNCTIONS), ""),
            role="pass" if module.is_leaf and has_norm_name(module.class_name) else role_of(op.function for op in ops),
        )

    @cached_property
    def _used_outside(self) -> set[int]:
        """The ops whose output is used outside of their box."""
        uses = [(value.op, self.box[op.index]) for op in self.trace.needed_ops for value in op.inputs]
        used = {index for index, box in uses if index is not None and self.box[index] != box}
        return used if self.trace.output.op is None else used | {self.trace.output.op}


def _attention(op: Op) -> str:
    """Describe the attention of an op; empty for other functions."""
    if op.function not in ATTENTION_FUNCTIONS:
        return ""
    queries = op.inputs[0].shape
    heads = queries[2 if op.function == "attend" else 1] if len(queries) == 4 else None
    return describe_attention(heads, op.is_causal, op.is_masked, op.window)


def describe_attention(
    heads: int | None, is_causal: bool = False, is_masked: bool = False, window: int | None = None
) -> str:
    """Return the label of an attention: its number of heads and its mask, as far as they are known."""
    mask = "causal" if is_causal else "masked" if is_masked else ""
    parts = ["" if heads is None else pluralize(heads, "head"), mask, f"window {window}" if window else ""]
    return ", ".join(filter(None, parts))
