"""Find repeated blocks, which are drawn once with a count."""

from collections.abc import Iterator
from dataclasses import dataclass

from normscope.tracing.trace import ModelTrace, ModuleCall, Op, TensorRef

Signature = tuple[object, ...]


@dataclass(frozen=True)
class RepeatedBlock:
    """Consecutive calls that run the same ops on the same shapes, with parameters of the same sizes."""

    calls: tuple[int, ...]

    @property
    def times(self) -> int:
        return len(self.calls)


def find_repeated_blocks(trace: ModelTrace, scope: int, with_join: frozenset[int]) -> list[RepeatedBlock]:
    """Return the blocks of a call: repeated modules, and other modules of the same classes.

    If no module is repeated, blocks are the modules with one input that contain a residual addition.

    Args:
        trace: the trace.
        scope: the index of the call.
        with_join: the calls that contain a residual addition.
    """
    found = list(_repeated(trace, scope))
    taken = {call for run in found for call in run.calls}
    kinds = {trace.calls[call].class_name for call in taken}
    for call in _calls_inside(trace, scope):
        is_block = call.class_name in kinds if kinds else call.index in with_join
        if is_block and not taken.intersection(trace.call_stacks[call.index]) and _has_one_input(trace, call.index):
            found.append(RepeatedBlock((call.index,)))
            taken.add(call.index)
    return found


def _repeated(trace: ModelTrace, parent: int) -> Iterator[RepeatedBlock]:
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
            yield RepeatedBlock(tuple(children[at:end]))
        else:
            for child in children[at:end]:
                yield from _repeated(trace, child)
        at = end


def _calls_inside(trace: ModelTrace, scope: int) -> list[ModuleCall]:
    """Return the calls inside a call that have children, the outermost first."""
    inside = [c for c in trace.calls if scope in trace.call_stacks[c.index][:-1] and not c.is_leaf]
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
