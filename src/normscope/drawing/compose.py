"""Turn a trace into the chain to draw: repeated blocks folded, submodules expanded in frames or collapsed."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby

from normscope.drawing.fold_blocks import BlockCalls, find_repeated_blocks
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
    """The chain to draw, and the parameters in it."""

    chain: Chain
    parameters: frozenset[str]


def compose(trace: ModelTrace, root: int = 0, expand: bool | None = None) -> Composition:
    """Return the chain of one module call.

    Args:
        trace: the trace of the call.
        root: the index of the call.
        expand: draw the contents of attention, MLPs and other submodules without residual additions, in a frame. None
            does so if no blocks are folded.
    """
    is_top = root == 0
    fine = collapse_idioms(build_graph(trace, is_whole=is_top))
    joins = [fine.nodes[index] for index in find_joins(fine)]
    with_join = frozenset(_calls_with_join(trace, root, joins) if is_top else ())
    blocks = find_repeated_blocks(trace, root, with_join)
    expand = not blocks if expand is None else expand
    parts = _parts(trace, root, joins, blocks)
    collapsed = {
        part for part in parts if not expand or sum(part in _stack_of(trace, n) for n in fine.nodes.values()) == 1
    }
    graph = collapse_idioms(build_graph(trace, {*collapsed, *blocks}, is_whole=is_top))
    chain = _FrameBuilder(trace, blocks, parts - collapsed, expand).framed(build_chain(graph))
    return Composition(chain, frozenset().union(*(node.parameters for node in graph.nodes.values())))


def _stack_of(trace: ModelTrace, node: GraphNode) -> tuple[int, ...]:
    return trace.call_stacks[node.call]


def _calls_with_join(trace: ModelTrace, root: int, joins: list[GraphNode]) -> Iterator[int]:
    """Yield, for each join, the innermost call around it that has one input."""
    for join in joins:
        inside = [call for call in reversed(_stack_of(trace, join)) if root in trace.call_stacks[call][:-1]]
        yield from [call for call in inside if len(trace.inputs_of(call)) == 1][:1]


def _parts(trace: ModelTrace, root: int, joins: list[GraphNode], blocks: Mapping[int, BlockCalls]) -> set[int]:
    """Return the outermost submodules with children that contain no join and no block, and are not in a block."""
    whole = {call for join in joins for call in _stack_of(trace, join)}
    whole |= {outer for call in blocks for outer in trace.call_stacks[call]}
    found: set[int] = set()
    for call in trace.calls:
        stack = trace.call_stacks[call.index]
        is_part = not call.is_leaf and root in stack[:-1] and call.index not in whole
        if is_part and not (found | blocks.keys()).intersection(stack) and trace.ops_in(call.index):
            found.add(call.index)
    return found


class _FrameBuilder:
    def __init__(self, trace: ModelTrace, blocks: Mapping[int, BlockCalls], parts: set[int], expand: bool) -> None:
        self.trace, self.blocks, self.parts, self.expand = trace, blocks, parts, expand

    def framed(self, chain: Chain) -> Chain:
        """Return the chain with repeated blocks drawn once and submodules in frames, also in lanes and branches."""
        items = [self._frame_nested(item) for item in self._fold_blocks(chain.items)]
        done: list[ChainItem] = []
        position = 0
        for part, group in groupby(items, key=self._part):
            members = tuple(group)
            position += len(members)
            if part is None:
                done += members
                continue
            after = input_shape(items[position]) if position < len(items) else None
            inside = Chain(members, after or chain.output_shape)
            done.append(FrameItem(part, 1, inside, input_shape(members[0]), self._size(part), is_part=True))
        return Chain(tuple(done), chain.output_shape)

    def _fold_blocks(self, items: tuple[ChainItem, ...]) -> Iterator[ChainItem]:
        """Yield the items, with one frame for consecutive boxes of a repeated block."""
        for block, group in groupby(items, key=self._block):
            members = list(group)
            if block is None:
                yield from members
                continue
            first = members[0]
            assert isinstance(first, NodeItem)
            call = first.node.call
            inside = compose(self.trace.subtrace(call), call, self.expand).chain
            # Its first item is its input, which the enclosing chain has drawn.
            inside = replace(inside, items=inside.items[1:])
            yield FrameItem(call, len(members), inside, first.input_shape, self._size(call))

    def _block(self, item: ChainItem) -> BlockCalls | None:
        """Return the repeated block that an item is a box of."""
        return self.blocks.get(item.node.call) if isinstance(item, NodeItem) and item.node.is_module else None

    def _size(self, call: int) -> int:
        return sum(self.trace.parameter_sizes[name] for name in self.trace.calls[call].parameters)

    def _frame_nested(self, item: ChainItem) -> ChainItem:
        if isinstance(item, MergeItem):
            part = self._part(item)  # an item inside one part needs no further frames
            return item if part is not None else replace(item, lanes=tuple(self.framed(lane) for lane in item.lanes))
        if isinstance(item, ResidualItem):
            branches = tuple(replace(branch, chain=self.framed(branch.chain)) for branch in item.branches)
            shortcut = None if item.shortcut is None else self.framed(item.shortcut)
            return ResidualItem(self.framed(item.shared), branches, shortcut)
        return item

    def _part(self, item: ChainItem) -> int | None:
        """Return the part that contains all nodes of an item."""
        found = {
            next((call for call in _stack_of(self.trace, node) if call in self.parts), None) for node in _nodes(item)
        }
        return found.pop() if len(found) == 1 else None


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
