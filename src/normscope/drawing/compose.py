"""From a trace to the line that is drawn: blocks folded, parts in frames or closed."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from normscope.drawing.fold_blocks import Run, runs_of
from normscope.drawing.graph import Node, build_graph
from normscope.drawing.idioms import with_idioms
from normscope.drawing.residual_joins import joins_of
from normscope.drawing.structure import Box, Frame, Item, Line, Merge, Residual, arrives, build_line
from normscope.tracing.trace import Trace


@dataclass(frozen=True)
class Composition:
    """What is drawn, and the parameters that are in it."""

    line: Line
    parameters: frozenset[str]


def compose(trace: Trace, scope: int = 0, open_parts: bool | None = None) -> Composition:
    """The line of one call. Parts are the modules that hold others and no joins: attention, an MLP.

    Args:
        trace: what the call did.
        scope: the number of the call.
        open_parts: draw what is in the parts, in a frame; None does so where no blocks are folded.
    """
    is_top = scope == 0
    fine = with_idioms(build_graph(trace, is_whole=is_top))
    joins = [fine.nodes[number] for number in joins_of(fine)]
    runs = runs_of(trace, scope, frozenset(_joining(trace, scope, joins)) if is_top else frozenset())
    open_parts = not runs if open_parts is None else open_parts
    parts = _parts(trace, scope, joins, runs)
    shut = {
        part for part in parts if not open_parts or sum(part in _around(trace, n) for n in fine.nodes.values()) == 1
    }
    graph = with_idioms(build_graph(trace, {*shut, *(call for run in runs for call in run.calls)}, is_whole=is_top))
    line = _Framer(trace, runs, parts - shut, open_parts).framed(build_line(graph))
    return Composition(line, frozenset().union(*(node.parameters for node in graph.nodes.values())))


def _around(trace: Trace, node: Node) -> tuple[int, ...]:
    return trace.stacks[node.call]


def _joining(trace: Trace, scope: int, joins: list[Node]) -> Iterator[int]:
    """For each join, the innermost call around it that has one input."""
    for join in joins:
        inside = [call for call in reversed(_around(trace, join)) if scope in trace.stacks[call][:-1]]
        yield from [call for call in inside if len(trace.entering(call)) == 1][:1]


def _parts(trace: Trace, scope: int, joins: list[Node], runs: list[Run]) -> set[int]:
    """The outermost modules in a call that hold others, but no join and no block; and are not in a block."""
    whole = {call for join in joins for call in _around(trace, join)}
    blocks = {call for run in runs for call in run.calls}
    whole |= {outer for call in blocks for outer in trace.stacks[call]}
    found: set[int] = set()
    for call in trace.calls:
        stack = trace.stacks[call.number]
        is_part = not call.is_simple and scope in stack[:-1] and call.number not in whole
        if is_part and not found.intersection(stack) and not blocks.intersection(stack) and trace.steps_in(call.number):
            found.add(call.number)
    return found


class _Framer:
    def __init__(self, trace: Trace, runs: list[Run], parts: set[int], open_parts: bool) -> None:
        self.trace, self.parts, self.open_parts = trace, parts, open_parts
        self.run_of = {call: run for run in runs for call in run.calls}

    def framed(self, line: Line) -> Line:
        """The line with its blocks opened, each run once, and its parts in frames; its lanes and branches too."""
        items = [self._deeper(item) for item in self._opened(line.items)]
        groups: list[tuple[int | None, list[Item]]] = []
        for item in items:
            part = self._part(item)
            if groups and part is not None and groups[-1][0] == part:
                groups[-1][1].append(item)
            else:
                groups.append((part, [item]))
        done: list[Item] = []
        for place, (part, members) in enumerate(groups):
            if part is None:
                done += members
                continue
            after = groups[place + 1][1][0] if place + 1 < len(groups) else None
            leaves = line.leaves if after is None else arrives(after) or line.leaves
            done.append(
                Frame(part, 1, Line(tuple(members), leaves), arrives(members[0]), self._size(part), is_part=True)
            )
        return Line(tuple(done), line.leaves)

    def _opened(self, items: tuple[Item, ...]) -> Iterator[Item]:
        """Items, with one frame in place of the boxes of a run that follow one another."""
        place = 0
        while place < len(items):
            item = items[place]
            run = self.run_of.get(item.node.call) if isinstance(item, Box) and item.node.is_module else None
            if run is None or not isinstance(item, Box):
                yield item
                place += 1
                continue
            end = place
            while end < len(items) and _call(items[end]) in run.calls:
                end += 1
            call = item.node.call
            inside = compose(self.trace.within(call), call, self.open_parts).line
            # Its first item is what it is given, which the line around it has drawn.
            yield Frame(call, end - place, replace(inside, items=inside.items[1:]), item.arrives, self._size(call))
            place = end

    def _size(self, call: int) -> int:
        return sum(self.trace.sizes[name] for name in self.trace.calls[call].parameters)

    def _deeper(self, item: Item) -> Item:
        if isinstance(item, Merge):
            part = self._part(item)  # what is in one part needs no further frames
            return item if part is not None else replace(item, lanes=tuple(self.framed(lane) for lane in item.lanes))
        if isinstance(item, Residual):
            branches = tuple(replace(branch, line=self.framed(branch.line)) for branch in item.branches)
            return Residual(self.framed(item.shared), branches)
        return item

    def _part(self, item: Item) -> int | None:
        """The part that all of an item lies in."""
        found = {
            next((call for call in _around(self.trace, node) if call in self.parts), None) for node in _nodes(item)
        }
        return found.pop() if len(found) == 1 else None


def _call(item: Item) -> int | None:
    return item.node.call if isinstance(item, Box) and item.node.is_module else None


def _nodes(item: Item) -> Iterator[Node]:
    if isinstance(item, Box):
        yield item.node
    elif isinstance(item, Merge):
        yield item.node
        for lane in item.lanes:
            for inner in lane.items:
                yield from _nodes(inner)
    elif isinstance(item, Residual):
        for branch in item.branches:
            yield branch.join
