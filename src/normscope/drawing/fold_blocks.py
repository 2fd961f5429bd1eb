"""Blocks that are alike, one after the other: drawn once, with the number of times."""

from collections.abc import Iterator
from dataclasses import dataclass

from normscope.tracing.trace import Call, Step, Trace, Value

Signature = tuple[object, ...]


@dataclass(frozen=True)
class Run:
    """Calls in a row that did the same, on tensors of the same shapes, with parameters of the same sizes."""

    calls: tuple[int, ...]

    @property
    def times(self) -> int:
        return len(self.calls)


def runs_of(trace: Trace, scope: int, joining: frozenset[int]) -> list[Run]:
    """The blocks of a call: those that are repeated, and others of the same classes.

    Where none is repeated, a block is a module with one input that joins branches to a stream (`joining`) by itself.
    """
    found = list(_repeated(trace, scope))
    taken = {call for run in found for call in run.calls}
    kinds = {trace.calls[call].kind for call in taken}
    for call in _beneath(trace, scope):
        alike = call.kind in kinds if kinds else call.number in joining
        if alike and not taken.intersection(trace.stacks[call.number]) and _is_passed_through(trace, call.number):
            found.append(Run((call.number,)))
            taken.add(call.number)
    return found


def _repeated(trace: Trace, parent: int) -> Iterator[Run]:
    """The outermost runs of two or more."""
    children = [c.number for c in trace.calls if c.parent == parent and not c.is_simple and trace.steps_in(c.number)]
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
            yield Run(tuple(children[at:end]))
        else:
            for child in children[at:end]:
                yield from _repeated(trace, child)
        at = end


def _beneath(trace: Trace, scope: int) -> list[Call]:
    """The modules within a call that hold others, from the outside in."""
    inside = [c for c in trace.calls if scope in trace.stacks[c.number][:-1] and not c.is_simple]
    return sorted(inside, key=lambda call: len(trace.stacks[call.number]))


def _is_passed_through(trace: Trace, call: int) -> bool:
    return len(trace.entering(call)) == 1


def _follows(trace: Trace, before: int, after: int) -> bool:
    """Whether the one call is given what the other made, and nothing else."""
    made = {step.number for step in trace.steps_in(before)}
    return all(value.step in made for value in trace.entering(after))


def signature(trace: Trace, call: int) -> Signature:
    """What a call did, in a form in which two calls can be compared: not where it stands, and no numbers."""
    steps = trace.steps_in(call)
    place = {step.number: i for i, step in enumerate(steps)}
    depth = len(trace.stacks[call])
    return (trace.calls[call].kind, *(_step(trace, step, place, depth) for step in steps))


def _step(trace: Trace, step: Step, place: dict[int, int], depth: int) -> Signature:
    modules = [trace.calls[call] for call in trace.stacks[step.call][depth:]]
    return (
        step.function,
        step.shape,
        step.numbers,
        step.is_causal,
        step.is_masked,
        tuple((module.name, module.kind) for module in modules),
        tuple(_value(trace, value, place) for value in step.inputs),
    )


def _value(trace: Trace, value: Value, place: dict[int, int]) -> Signature:
    size = 0 if value.parameter is None else trace.sizes[value.parameter]
    return value.shape, size, place.get(-1 if value.step is None else value.step)
