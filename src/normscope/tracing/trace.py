"""What a model did in one pass, as plain values: the calls of its modules, and the functions on tensors within them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Call:
    """One call of a module."""

    number: int
    path: str
    """The module's name in the model, "blocks.0.attention"; empty for the model itself."""
    kind: str
    """The name of its class."""
    parent: int | None
    is_simple: bool
    """Whether it holds no other modules: it is drawn as one box, whatever it does inside."""
    parameters: frozenset[str]
    """The names of all its parameters, those of the modules in it too; a tied one has one name everywhere."""
    detail: str = ""
    """What its repr says beyond the class: how many groups, which kernel."""

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]


@dataclass(frozen=True)
class Value:
    """A tensor where it was used: what made it, and its shape there.

    Made by a step (its number), by the caller (the name of the model's argument), or learnt (a parameter's name); a
    constant, such as a mask of places, has none of the three.
    """

    shape: Shape
    step: int | None = None
    argument: str | None = None
    parameter: str | None = None


@dataclass(frozen=True)
class Step:
    """One function on tensors."""

    number: int
    function: str
    """Its name in torch, without underscores: add, linear, scaled_dot_product_attention."""
    inputs: tuple[Value, ...]
    shape: Shape
    """Of its first result."""
    call: int
    """The innermost call that it was a part of."""
    numbers: tuple[float | None, ...] = ()
    """Its first arguments: numbers as they are, None for a tensor and for all else."""
    is_causal: bool = False
    is_masked: bool = False
    window: int | None = None


@dataclass(frozen=True)
class Trace:
    """One pass of a model."""

    calls: tuple[Call, ...]
    steps: tuple[Step, ...]
    arguments: tuple[Value, ...]
    results: tuple[Value, ...]
    sizes: dict[str, int]
    """How many numbers each parameter holds."""

    def ancestry(self, call: int) -> Iterator[Call]:
        """The call and those around it, from the inside out."""
        at: int | None = call
        while at is not None:
            yield self.calls[at]
            at = self.calls[at].parent

    @cached_property
    def stacks(self) -> tuple[tuple[int, ...], ...]:
        """For each call: the calls around it and itself, from the outside in."""
        return tuple(tuple(c.number for c in self.ancestry(call.number))[::-1] for call in self.calls)

    @cached_property
    def is_live(self) -> tuple[bool, ...]:
        """For each step, whether what it makes depends on what the caller gave."""
        live: list[bool] = []
        for step in self.steps:
            live.append(any(v.argument is not None or (v.step is not None and live[v.step]) for v in step.inputs))
        return tuple(live)

    def leading_to(self, values: Iterable[Value]) -> set[int]:
        """The steps that these values depend on."""
        found: set[int] = set()
        waiting = [value.step for value in values if value.step is not None]
        while waiting:
            number = waiting.pop()
            if number not in found:
                found.add(number)
                waiting += [v.step for v in self.steps[number].inputs if v.step is not None]
        return found

    @cached_property
    def result(self) -> Value:
        """The result that most was done for: of several, the others usually lie on its way."""
        return max(self.results, key=lambda value: len(self.leading_to([value])))

    @cached_property
    def wanted(self) -> tuple[Step, ...]:
        """The steps that lead to the result, in their order."""
        return tuple(self.steps[number] for number in sorted(self.leading_to([self.result])))

    def steps_in(self, call: int) -> list[Step]:
        """The steps of a call, those of the calls in it too, that lead to the result."""
        return [step for step in self.wanted if call in self.stacks[step.call]]

    def entering(self, call: int) -> list[Value]:
        """What a call is given by others and depends on the caller, each thing once."""
        inside = {step.number for step in self.steps_in(call)}
        found: dict[tuple[int | None, str | None], Value] = {}
        for step in self.steps_in(call):
            for value in step.inputs:
                given = value.argument is not None or (
                    value.step is not None and value.step not in inside and self.is_live[value.step]
                )
                if given:
                    found.setdefault((value.step, value.argument), value)
        return list(found.values())

    def within(self, call: int) -> "Trace":
        """What one call did, as a trace of its own: what others gave it is its argument."""
        steps = self.steps_in(call)
        place = {step.number: i for i, step in enumerate(steps)}
        names = {
            (value.step, value.argument): "input" if i == 0 else f"input {i + 1}"
            for i, value in enumerate(self.entering(call))
        }

        def seen_from_inside(value: Value) -> Value:
            if value.step in place:
                return replace(value, step=place[value.step])
            return Value(value.shape, None, names.get((value.step, value.argument)), value.parameter)

        return replace(
            self,
            steps=tuple(
                replace(step, number=i, inputs=tuple(seen_from_inside(value) for value in step.inputs))
                for i, step in enumerate(steps)
            ),
            arguments=tuple(seen_from_inside(value) for value in self.entering(call)),
            results=(seen_from_inside(self._left_by(steps)),),
        )

    def _left_by(self, steps: list[Step]) -> Value:
        """What leaves a call: the last of its results that someone else uses."""
        inside = {step.number for step in steps}
        used = [v for step in self.wanted if step.number not in inside for v in step.inputs if v.step in inside]
        used += [self.result] if self.result.step in inside else []
        return max(used, key=lambda value: value.step or 0)
