"""Find repeated blocks, which are drawn once with a count."""

from collections.abc import Iterator

from normscope.tracing.trace import ModelTrace, ModuleCall, Op, TensorRef

Signature = tuple[object, ...]


BlockCalls = tuple[int, ...]
"""Consecutive calls that run the same ops on the same shapes, with parameters of the same sizes."""


def find_repeated_blocks(trace: ModelTrace, root: int, with_join: frozenset[int]) -> dict[int, BlockCalls]:
    """Return the blocks of a call by each of their calls: repeated modules, and other modules of the same classes.

    If no module is repeated, blocks are the modules with one input that contain a residual addition.

    Args:
        trace: the trace.
        root: the index of the call.
        with_join: the calls that contain a residual addition.
    """
    found = {call: block for block in _repeated(trace, root) for call in block}
    kinds = {trace.calls[call].class_name for call in found}
    for call in _calls_inside(trace, root):
        is_block = call.class_name in kinds if kinds else call.index in with_join
        if is_block and not found.keys() & trace.call_stacks[call.index] and _has_one_input(trace, call.index):
            found[call.index] = (call.index,)
    return found


def _repeated(trace: ModelTrace, parent: int) -> Iterator[BlockCalls]:
    """Yield the outermost blocks that occur twice or more in a row."""
    children = [c.index for c in trace.calls if c.parent == parent and not c.is_leaf and trace.ops_in(c.index)]
    at = 0
    while at < len(children):
        first = signature(trace, children[at])
        end = at + 1
        while (
            end < len(children)
            and _follows(trace, children[end - 1], children[end])
            and (signature(trace, children[end]) == first)
        ):
            end += 1
        if end - at > 1 and _has_one_input(trace, children[at]):
            yield tuple(children[at:end])
        else:
            for child in children[at:end]:
                yield from _repeated(trace, child)
        at = end


def _calls_inside(trace: ModelTrace, root: int) -> list[ModuleCall]:
    """Return the calls inside a call that have children, the outermost first."""
    inside = [c for c in trace.calls if root in trace.call_stacks[c.index][:-1] and not c.is_leaf]
    return sorted(inside, key=lambda call: len(trace.call_stacks[call.index]))


def _has_one_input(trace: ModelTrace, call: int) -> bool:
    return len(trace.inputs_of(call)) == 1


def _follows(trace: ModelTrace, before: int, after: int) -> bool:
    """Whether a call only reads the outputs of the call before it."""
    made = {op.index for op in trace.ops_in(before)}
    return all(value.op in made for value in trace.inputs_of(after))


def signature(trace: ModelTrace, call: int) -> Signature:
    """Return what a call does in a comparable form: no position in the model, no values."""
    ops = trace.ops_in(call)
    position = {op.index: i for i, op in enumerate(ops)}
    depth = len(trace.call_stacks[call])
    return (trace.calls[call].class_name, *(_op_signature(trace, op, position, depth) for op in ops))


def _op_signature(trace: ModelTrace, op: Op, position: dict[int, int], depth: int) -> Signature:
    modules = [trace.calls[call] for call in trace.call_stacks[op.call][depth:]]
    return (
        op.function,
        op.shape,
        op.scalar_args,
        op.is_causal,
        op.is_masked,
        tuple((module.name, module.class_name) for module in modules),
        tuple(_input_signature(trace, value, position) for value in op.inputs),
    )


def _input_signature(trace: ModelTrace, value: TensorRef, position: dict[int, int]) -> Signature:
    size = 0 if value.parameter is None else trace.parameter_sizes[value.parameter]
    return value.shape, size, position.get(-1 if value.op is None else value.op)
