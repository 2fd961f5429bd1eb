"""The flow of data through a model, as a graph of boxes: simple modules, functions, modules that are to stay closed.

Views are no boxes: they change the shape at an arrow. Constants, such as masks and tables of places, are no boxes
either, nor is what does not lead to the result.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from normscope.drawing.inputs import Reshaped, reshaped_inputs
from normscope.tracing.function_kinds import ATTENTION, VIEWS
from normscope.tracing.trace import Call, Shape, Step, Trace, Value


@dataclass(frozen=True)
class Edge:
    """An arrow: from a node, with the shape that arrives."""

    source: int
    shape: Shape


@dataclass(frozen=True)
class Sight:
    """How many heads attention has, as far as the shapes tell, and what a token sees."""

    heads: int | None
    is_causal: bool = False
    is_masked: bool = False
    window: int | None = None


@dataclass(frozen=True)
class Node:
    """A box. Numbers grow along the flow: a node comes after all that it needs."""

    number: int
    operation: str
    """A function's name; "module" for what a module does; "input" for what the caller gives."""
    call: int
    """The call that it is, or the one that it is a part of."""
    inputs: tuple[Edge, ...]
    shape: Shape
    parameters: frozenset[str] = frozenset()
    words: str = ""
    """What to say of it, beyond its name."""
    numbers: tuple[float | None, ...] = ()
    sight: Sight | None = None
    """Of attention, who sees whom."""

    @property
    def is_module(self) -> bool:
        return self.operation == "module"


@dataclass(frozen=True)
class Graph:
    """The boxes and arrows from a model's inputs to its result."""

    trace: Trace
    nodes: Mapping[int, Node]
    result: Edge

    @cached_property
    def users(self) -> Mapping[int, tuple[int, ...]]:
        """For each node those that it feeds, each as often as it does."""
        found: dict[int, list[int]] = {number: [] for number in self.nodes}
        for node in self.nodes.values():
            for edge in node.inputs:
                found[edge.source].append(node.number)
        return {number: tuple(users) for number, users in found.items()}

    @cached_property
    def ancestors(self) -> Mapping[int, frozenset[int]]:
        """For each node all that it depends on."""
        found: dict[int, frozenset[int]] = {}
        for number in sorted(self.nodes):
            sources = [edge.source for edge in self.nodes[number].inputs]
            found[number] = frozenset(sources).union(*(found[source] for source in sources))
        return found

    def call_of(self, node: Node) -> Call:
        return self.trace.calls[node.call]

    def merged(self, group: Collection[int], into: Node) -> "Graph":
        """The graph with a group of nodes as one, which has the number of the last of them."""
        kept = {number: node for number, node in self.nodes.items() if number not in group}
        return replace(self, nodes=dict(sorted({**kept, into.number: into}.items())))


def build_graph(trace: Trace, closed: Collection[int] = (), *, is_whole: bool = True) -> Graph:
    """The graph of a trace, in which simple modules and the calls that are named as `closed` are one box each.

    With `is_whole` it is of a whole model, whose inputs no one else draws.
    """
    return _Builder(trace, frozenset(closed), is_whole).graph()


class _Builder:
    def __init__(self, trace: Trace, closed: frozenset[int], is_whole: bool) -> None:
        self.trace = trace
        self.closed = closed | {call.number for call in trace.calls if call.is_simple}
        # The box that each step is a part of: its own number, or minus the number of the outermost closed call.
        self.box = [self._box(step) for step in trace.steps]
        self.is_live = trace.is_live
        self.members: dict[int, list[Step]] = {}
        for step in trace.wanted:
            self.members.setdefault(self.box[step.number], []).append(step)
        self.reshaped: dict[int, Reshaped] = {}
        self.carries = self._carrying()
        if is_whole:
            of_boxes = reshaped_inputs(trace, lambda step: not self._is_drawn(self.box[step.number]))
            self.reshaped = {self.box[number]: reshaped for number, reshaped in of_boxes.items()}
        self.inputs = {value.argument: -i - 1 for i, value in enumerate(trace.arguments)}

    def _box(self, step: Step) -> int:
        outermost = next((call for call in self.trace.stacks[step.call] if call in self.closed), None)
        return step.number if outermost is None else -outermost

    def graph(self) -> Graph:
        nodes: dict[int, Node] = {
            self.inputs[value.argument]: Node(
                self.inputs[value.argument], "input", 0, (), value.shape, words=value.argument or ""
            )
            for value in self.trace.arguments
        }
        for box, steps in self.members.items():
            if self._is_drawn(box):
                node = self._module(-box, steps) if self._is_call(box) else self._function(steps[0])
                nodes[node.number] = node
        result = self._edge(self.trace.result)
        if result is None:
            result = Edge(min(nodes, default=-1), self.trace.result.shape)
        used = {result.source} | {edge.source for node in nodes.values() for edge in node.inputs}
        nodes = {number: node for number, node in nodes.items() if number >= 0 or number in used}
        return Graph(self.trace, dict(sorted(nodes.items())), result)

    def _is_call(self, box: int) -> bool:
        return box < 0  # the model itself is never closed, so no call is minus nothing

    def _is_drawn(self, box: int) -> bool:
        """Whether a box does something to what the caller gave, or is a module that gives something learnt."""
        if box not in self.members:
            return False
        if box in self.reshaped:
            return True
        steps = self.members[box]
        if self._is_call(box):
            learns = any(value.parameter for step in steps for value in step.inputs)
            works = any(step.function not in VIEWS for step in steps)
            return works and (learns or any(self.is_live[step.number] for step in steps))
        return self.is_live[box] and not self._is_view(steps[0])

    def _is_view(self, step: Step) -> bool:
        carried = [value for value in step.inputs if self._is_carried(value)]
        if step.function == "cat":  # with nothing: a cache that is empty
            return len(carried) == 1 and carried[0].shape == step.shape and not self._parameters(step.inputs)
        return step.function in VIEWS and len(carried) <= 1

    def _is_carried(self, value: Value) -> bool:
        """Whether it holds something of what a box gave or the caller did."""
        return value.argument is not None or (value.step is not None and self.carries[value.step])

    def _carrying(self) -> list[bool]:
        """For each step, whether its result comes from the caller or from a module that gives something learnt."""
        carries: list[bool] = []
        for step in self.trace.steps:
            box = self.box[step.number]
            from_before = any(v.step is not None and carries[v.step] for v in step.inputs)
            carries.append(self.is_live[step.number] or from_before or (self._is_call(box) and self._is_drawn(box)))
        return carries

    def _is_drawn_call(self, box: int) -> bool:
        return self._is_call(box) and self._is_drawn(box)

    def _edge(self, value: Value) -> Edge | None:
        """Where a value came from, past all the views; None for constants and parameters."""
        at = value
        while True:
            if at.argument is not None:
                return Edge(self.inputs[at.argument], value.shape)
            if at.step is None:
                return None
            box = self.box[at.step]
            if self._is_drawn(box):
                return Edge(self._number(box), value.shape)
            before = next((v for v in self.trace.steps[at.step].inputs if self._is_carried(v)), None)
            if before is None:
                return None
            at = before

    def _number(self, box: int) -> int:
        return self.members[box][-1].number if self._is_call(box) else box

    def _parameters(self, values: Iterable[Value]) -> frozenset[str]:
        """The parameters in these values: themselves, or behind functions of parameters alone."""
        found, waiting = set(), list(values)
        while waiting:
            value = waiting.pop()
            if value.parameter is not None:
                found.add(value.parameter)
            elif (
                value.step is not None
                and not self.is_live[value.step]
                and not self._is_drawn_call(self.box[value.step])
            ):
                waiting += self.trace.steps[value.step].inputs
        return frozenset(found)

    def _function(self, step: Step) -> Node:
        reshaped = self.reshaped.get(step.number)
        if reshaped is not None:
            entry = Edge(self.inputs[reshaped.argument.argument], reshaped.argument.shape)
            words = ", ".join(reshaped.views)
            return Node(step.number, step.function, step.call, (entry,), step.shape, words=words)
        edges = tuple(edge for value in step.inputs if (edge := self._edge(value)) is not None)
        return Node(
            number=step.number,
            operation=step.function,
            call=step.call,
            inputs=edges,
            shape=step.shape,
            parameters=self._parameters(step.inputs),
            numbers=step.numbers,
            sight=_attention(step),
        )

    def _module(self, call: int, steps: list[Step]) -> Node:
        inside = {step.number for step in steps}
        edges: dict[tuple[int, Shape], Edge] = {}
        parameters: frozenset[str] = frozenset()
        for step in steps:
            parameters |= self._parameters(step.inputs)
            for value in step.inputs:
                if value.step is None or value.step not in inside:
                    edge = self._edge(value)
                    if edge is not None:
                        edges.setdefault((edge.source, edge.shape), edge)
        return Node(
            number=steps[-1].number,
            operation="module",
            call=call,
            inputs=tuple(edges.values()),
            shape=next((step.shape for step in reversed(steps) if step.number in self._used_outside), steps[-1].shape),
            parameters=parameters,
            sight=next((_attention(step) for step in steps if step.function in ATTENTION), None),
        )

    @cached_property
    def _used_outside(self) -> set[int]:
        """The steps whose result leaves the box that they are a part of."""
        used = {v.step for step in self.trace.wanted for v in step.inputs if self._is_elsewhere(v, step)}
        return {number for number in (*used, self.trace.result.step) if number is not None}

    def _is_elsewhere(self, value: Value, step: Step) -> bool:
        return value.step is not None and self.box[value.step] != self.box[step.number]


def _attention(step: Step) -> Sight | None:
    """How many heads, and what they see."""
    if step.function not in ATTENTION:
        return None
    queries = step.inputs[0].shape
    heads: int | None = None
    if step.function == "multi_head_attention_forward":
        heads = int(step.numbers[4] or 0) or None
    elif len(queries) == 4:
        heads = queries[2] if step.function == "attend" else queries[1]
    return Sight(heads, step.is_causal, step.is_masked, step.window)
