"""Turn a trace into the chain to draw: repeated blocks folded, submodules expanded in frames or collapsed."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import groupby

from normscope.drawing.graph import GraphNode, build_graph
from normscope.drawing.idioms import collapse_idioms, find_joins
from normscope.drawing.structure import Chain, ChainItem, FrameItem, MergeItem, NodeItem, ResidualItem, build_chain
from normscope.tracing.trace import ModelTrace

BlockCalls = tuple[int, ...]
"""Consecutive calls that run the same ops on the same shapes, with parameters of the same sizes."""


def compose(trace: ModelTrace, root: int = 0, expand: bool | None = None) -> tuple[Chain, frozenset[str]]:
    """Return the chain of one module call, and the parameters in it.

    Args:
        trace: the trace of the call.
        root: the index of the call.
        expand: draw the contents of attention, MLPs and other submodules without residual additions, in a frame. None
            does so if no blocks are folded.
    """
    is_top = root == 0
    fine = collapse_idioms(build_graph(trace, is_whole=is_top))
    joins = [fine.nodes[index] for index in find_joins(fine)]
    blocks = _find_blocks(trace, root, set(_calls_with_join(trace, root, joins) if is_top else ()))
    expand = not blocks if expand is None else expand
    parts = _parts(trace, root, joins, blocks)
    collapsed = {
        part for part in parts if not expand or sum(part in _stack_of(trace, n) for n in fine.nodes.values()) == 1
    }
    graph = collapse_idioms(build_graph(trace, {*collapsed, *blocks}, is_whole=is_top))
    chain = _FrameBuilder(trace, blocks, parts - collapsed, expand).framed(build_chain(graph))
    return chain, frozenset().union(*(node.parameters for node in graph.nodes.values()))


def _stack_of(trace: ModelTrace, node: GraphNode) -> tuple[int, ...]:
    return trace.call_stacks[node.call]


def _calls_with_join(trace: ModelTrace, root: int, joins: list[GraphNode]) -> Iterator[int]:
    """Yield, for each join, the innermost call around it that has one input."""
    for join in joins:
        inside = [call for call in reversed(_stack_of(trace, join)) if root in trace.call_stacks[call][:-1]]
        yield from [call for call in inside if _has_one_input(trace, call)][:1]


def _has_one_input(trace: ModelTrace, call: int) -> bool:
    return len(trace.inputs_of(call)) == 1


def _find_blocks(trace: ModelTrace, root: int, with_join: set[int]) -> dict[int, BlockCalls]:
    """Return the blocks of a call by each of their calls: repeated modules, and other modules of the same classes.

    If no module is repeated, blocks are the modules with one input that contain a residual addition: `with_join`.
    """
    found = {call: block for block in _repeated(trace, root) for call in block}
    kinds = {trace.calls[call].class_name for call in found}
    inside = [call for call in trace.calls if root in trace.call_stacks[call.index][:-1] and not call.is_leaf]
    for call in sorted(inside, key=lambda call: len(trace.call_stacks[call.index])):  # the outermost first
        is_block = call.class_name in kinds if kinds else call.index in with_join
        if is_block and not found.keys() & trace.call_stacks[call.index] and _has_one_input(trace, call.index):
            found[call.index] = (call.index,)
    return found


def _repeated(trace: ModelTrace, parent: int) -> Iterator[BlockCalls]:
    """Yield the outermost blocks that occur twice or more in a row."""
    runs: list[list[int]] = []
    signatures = []
    for call in trace.calls:
        if call.parent == parent and not call.is_leaf and trace.ops_in(call.index):
            signatures.append(_signature(trace, call.index))
            if len(signatures) > 1 and signatures[-1] == signatures[-2] and _follows(trace, runs[-1][-1], call.index):
                runs[-1].append(call.index)
            else:
                runs.append([call.index])
    for run in runs:
        if len(run) > 1 and _has_one_input(trace, run[0]):
            yield tuple(run)
        else:
            for child in run:
                yield from _repeated(trace, child)


def _follows(trace: ModelTrace, before: int, after: int) -> bool:
    """Whether a call only reads the outputs of the call before it."""
    made = {op.index for op in trace.ops_in(before)}
    return all(value.op in made for value in trace.inputs_of(after))


def _signature(trace: ModelTrace, call: int) -> list[object]:
    """Return what a call does in a comparable form: no position in the model, no values."""
    ops = trace.ops_in(call)
    position: dict[int | None, int] = {op.index: i for i, op in enumerate(ops)}
    depth = len(trace.call_stacks[call])
    found: list[object] = [trace.calls[call].class_name]
    for op in ops:
        modules = [trace.calls[inner] for inner in trace.call_stacks[op.call][depth:]]
        path = [(module.name, module.class_name) for module in modules]
        sizes = [trace.parameter_sizes.get(value.parameter or "", 0) for value in op.inputs]
        inputs = [(value.shape, position.get(value.op)) for value in op.inputs]
        found.append((op.function, op.shape, op.scalar_args, op.is_causal, op.is_masked, path, sizes, inputs))
    return found


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
            after = items[position].input_shape if position < len(items) else None
            inside = Chain(members, after or chain.output_shape)
            done.append(FrameItem(part, 1, inside, members[0].input_shape, self._size(part), is_part=True))
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
            inside, _ = compose(self.trace.subtrace(call), call, self.expand)
            # Its first item is its input, which the enclosing chain has drawn.
            inside = replace(inside, items=inside.items[1:])
            yield FrameItem(call, len(members), inside, first.input_shape, self._size(call))

    def _block(self, item: ChainItem) -> BlockCalls | None:
        """Return the repeated block that an item is a box of."""
        return self.blocks.get(item.node.call) if isinstance(item, NodeItem) and item.node.is_module else None

    def _size(self, call: int) -> int:
        return sum(self.trace.parameter_sizes[name] for name in self.trace.calls[call].parameters)

    def _frame_nested(self, item: ChainItem) -> ChainItem:
        if isinstance(item, MergeItem) and self._part(item) is None:  # inside one part, no further frames are needed
            return replace(item, lanes=tuple(map(self.framed, item.lanes)))
        if isinstance(item, ResidualItem):
            branches = tuple(replace(branch, chain=self.framed(branch.chain)) for branch in item.branches)
            shortcut = None if item.shortcut is None else self.framed(item.shortcut)
            return ResidualItem(self.framed(item.shared), branches, shortcut)
        return item

    def _part(self, item: ChainItem) -> int | None:
        """Return the part that contains all nodes of an item."""
        stacks = [_stack_of(self.trace, node) for node in _nodes(item)]
        found = {next((call for call in stack if call in self.parts), None) for stack in stacks}
        return found.pop() if len(found) == 1 else None


def _nodes(item: ChainItem) -> Iterator[GraphNode]:
    if isinstance(item, NodeItem | MergeItem):
        yield item.node
    if isinstance(item, MergeItem):
        for lane in item.lanes:
            for inner in lane.items:
                yield from _nodes(inner)
    elif isinstance(item, ResidualItem):
        yield from (branch.join for branch in item.branches)
