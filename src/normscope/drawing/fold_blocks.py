"""Blocks that are alike, one after the other: drawn once, with the number of times."""

from collections.abc import Iterator
from dataclasses import dataclass

from normscope.tracing.trace import ModelTrace, ModuleCall, Op, TensorRef

Signature = tuple[object, ...]


@dataclass(frozen=True)
class RepeatedBlock:
    """Calls in a row that did the same, on tensors of the same shapes, with parameters of the same sizes."""

    calls: tuple[int, ...]

    @property
    def times(self) -> int:
        return len(self.calls)


def find_repeated_blocks(trace: ModelTrace, scope: int, joining: frozenset[int]) -> list[RepeatedBlock]:
    """The blocks of a call: those that are repeated, and others of the same classes.

    Where none is repeated, a block is a module with one input that joins branches to a stream (`joining`) by itself.
    """
    found = list(_repeated(trace, scope))
    taken = {call for run in found for call in run.calls}
    kinds = {trace.calls[call].class_name for call in taken}
    for call in _beneath(trace, scope):
        alike = call.class_name in kinds if kinds else call.index in joining
        if alike and not taken.intersection(trace.call_stacks[call.index]) and _is_passed_through(trace, call.index):
            found.append(RepeatedBlock((call.index,)))
            taken.add(call.index)
    return found


def _repeated(trace: ModelTrace, parent: int) -> Iterator[RepeatedBlock]:
    """The outermost runs of two or more."""
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
        if end - at > 1 and _is_passed_through(trace, children[at]):
            yield RepeatedBlock(tuple(children[at:end]))
        else:
            for child in children[at:end]:
                yield from _repeated(trace, child)
        at = end


def _beneath(trace: ModelTrace, scope: int) -> list[ModuleCall]:
    """The modules within a call that hold others, from the outside in."""
    inside = [c for c in trace.calls if scope in trace.call_stacks[c.index][:-1] and not c.is_leaf]
    return sorted(inside, key=lambda call: len(trace.call_stacks[call.index]))


def _is_passed_through(trace: ModelTrace, call: int) -> bool:
    return len(trace.inputs_of(call)) == 1


def _follows(trace: ModelTrace, before: int, after: int) -> bool:
    """Whether the one call is given what the other made, and nothing else."""
    made = {op.index for op in trace.ops_in(before)}
    return all(value.op in made for value in trace.inputs_of(after))


def signature(trace: ModelTrace, call: int) -> Signature:
    """What a call did, in a form in which two calls can be compared: not where it stands, and no numbers."""
    ops = trace.ops_in(call)
    place = {op.index: i for i, op in enumerate(ops)}
    depth = len(trace.call_stacks[call])
    return (trace.calls[call].class_name, *(_op_signature(trace, op, place, depth) for op in ops))


def _op_signature(trace: ModelTrace, op: Op, place: dict[int, int], depth: int) -> Signature:
    modules = [trace.calls[call] for call in trace.call_stacks[op.call][depth:]]
    return (
        op.function,
        op.shape,
        op.scalar_args,
        op.is_causal,
        op.is_masked,
        tuple((module.name, module.class_name) for module in modules),
        tuple(_input_signature(trace, value, place) for value in op.inputs),
    )


def _input_signature(trace: ModelTrace, value: TensorRef, place: dict[int, int]) -> Signature:
    size = 0 if value.parameter is None else trace.parameter_sizes[value.parameter]
    return value.shape, size, place.get(-1 if value.op is None else value.op)
