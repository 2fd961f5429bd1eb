"""From a trace to the line that is drawn: blocks folded, parts in frames or closed."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from normscope.drawing.fold_blocks import RepeatedBlock, find_repeated_blocks
from normscope.drawing.graph import GraphNode, build_graph
from normscope.drawing.idioms import collapse_idioms
from normscope.drawing.residual_joins import find_joins
from normscope.drawing.structure import (
    Chain,
    ChainItem,
    FrameItem,
    MergeItem,
    NodeItem,
    ResidualItem,
    build_chain,
    input_shape,
)
from normscope.tracing.trace import ModelTrace


@dataclass(frozen=True)
class Composition:
    """What is drawn, and the parameters that are in it."""

    chain: Chain
    parameters: frozenset[str]


def compose(trace: ModelTrace, scope: int = 0, expand: bool | None = None) -> Composition:
    """The line of one call. Parts are the modules that hold others and no joins: attention, an MLP.

    Args:
        trace: what the call did.
        scope: the number of the call.
        open_parts: draw what is in the parts, in a frame; None does so where no blocks are folded.
    """
    is_top = scope == 0
    fine = collapse_idioms(build_graph(trace, is_whole=is_top))
    joins = [fine.nodes[index] for index in find_joins(fine)]
    blocks = find_repeated_blocks(trace, scope, frozenset(_joining(trace, scope, joins)) if is_top else frozenset())
    expand = not blocks if expand is None else expand
    parts = _parts(trace, scope, joins, blocks)
    shut = {part for part in parts if not expand or sum(part in _around(trace, n) for n in fine.nodes.values()) == 1}
    graph = collapse_idioms(
        build_graph(trace, {*shut, *(call for block in blocks for call in block.calls)}, is_whole=is_top)
    )
    chain = _FrameBuilder(trace, blocks, parts - shut, expand).framed(build_chain(graph))
    return Composition(chain, frozenset().union(*(node.parameters for node in graph.nodes.values())))


def _around(trace: ModelTrace, node: GraphNode) -> tuple[int, ...]:
    return trace.call_stacks[node.call]


def _joining(trace: ModelTrace, scope: int, joins: list[GraphNode]) -> Iterator[int]:
    """For each join, the innermost call around it that has one input."""
    for join in joins:
        inside = [call for call in reversed(_around(trace, join)) if scope in trace.call_stacks[call][:-1]]
        yield from [call for call in inside if len(trace.inputs_of(call)) == 1][:1]


def _parts(trace: ModelTrace, scope: int, joins: list[GraphNode], blocks: list[RepeatedBlock]) -> set[int]:
    """The outermost modules in a call that hold others, but no join and no block; and are not in a block."""
    whole = {call for join in joins for call in _around(trace, join)}
    block_calls = {call for block in blocks for call in block.calls}
    whole |= {outer for call in block_calls for outer in trace.call_stacks[call]}
    found: set[int] = set()
    for call in trace.calls:
        stack = trace.call_stacks[call.index]
        is_part = not call.is_leaf and scope in stack[:-1] and call.index not in whole
        if (
            is_part
            and not found.intersection(stack)
            and not block_calls.intersection(stack)
            and trace.ops_in(call.index)
        ):
            found.add(call.index)
    return found


class _FrameBuilder:
    def __init__(self, trace: ModelTrace, blocks: list[RepeatedBlock], parts: set[int], expand: bool) -> None:
        self.trace, self.parts, self.expand = trace, parts, expand
        self.block_of = {call: block for block in blocks for call in block.calls}

    def framed(self, chain: Chain) -> Chain:
        """The line with its blocks opened, each run once, and its parts in frames; its lanes and branches too."""
        items = [self._deeper(item) for item in self._opened(chain.items)]
        groups: list[tuple[int | None, list[ChainItem]]] = []
        for item in items:
            part = self._part(item)
            if groups and part is not None and groups[-1][0] == part:
                groups[-1][1].append(item)
            else:
                groups.append((part, [item]))
        done: list[ChainItem] = []
        for place, (part, members) in enumerate(groups):
            if part is None:
                done += members
                continue
            after = groups[place + 1][1][0] if place + 1 < len(groups) else None
            output_shape = chain.output_shape if after is None else input_shape(after) or chain.output_shape
            done.append(
                FrameItem(
                    part,
                    1,
                    Chain(tuple(members), output_shape),
                    input_shape(members[0]),
                    self._size(part),
                    is_part=True,
                )
            )
        return Chain(tuple(done), chain.output_shape)

    def _opened(self, items: tuple[ChainItem, ...]) -> Iterator[ChainItem]:
        """Items, with one frame in place of the boxes of a run that follow one another."""
        place = 0
        while place < len(items):
            item = items[place]
            run = self.block_of.get(item.node.call) if isinstance(item, NodeItem) and item.node.is_module else None
            if run is None or not isinstance(item, NodeItem):
                yield item
                place += 1
                continue
            end = place
            while end < len(items) and _call(items[end]) in run.calls:
                end += 1
            call = item.node.call
            inside = compose(self.trace.subtrace(call), call, self.expand).chain
            # Its first item is what it is given, which the line around it has drawn.
            yield FrameItem(
                call, end - place, replace(inside, items=inside.items[1:]), item.input_shape, self._size(call)
            )
            place = end

    def _size(self, call: int) -> int:
        return sum(self.trace.parameter_sizes[name] for name in self.trace.calls[call].parameters)

    def _deeper(self, item: ChainItem) -> ChainItem:
        if isinstance(item, MergeItem):
            part = self._part(item)  # what is in one part needs no further frames
            return item if part is not None else replace(item, lanes=tuple(self.framed(lane) for lane in item.lanes))
        if isinstance(item, ResidualItem):
            branches = tuple(replace(branch, chain=self.framed(branch.chain)) for branch in item.branches)
            return ResidualItem(self.framed(item.shared), branches)
        return item

    def _part(self, item: ChainItem) -> int | None:
        """The part that all of an item lies in."""
        found = {
            next((call for call in _around(self.trace, node) if call in self.parts), None) for node in _nodes(item)
        }
        return found.pop() if len(found) == 1 else None


def _call(item: ChainItem) -> int | None:
    return item.node.call if isinstance(item, NodeItem) and item.node.is_module else None


def _nodes(item: ChainItem) -> Iterator[GraphNode]:
    if isinstance(item, NodeItem):
        yield item.node
    elif isinstance(item, MergeItem):
        yield item.node
        for lane in item.lanes:
            for inner in lane.items:
                yield from _nodes(inner)
    elif isinstance(item, ResidualItem):
        for branch in item.branches:
            yield branch.join
