"""What a model did in one pass, as plain values: the calls of its modules, and the functions on tensors within them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

Shape = tuple[int, ...]


@dataclass(frozen=True)
class ModuleCall:
    """One call of a module."""

    index: int
    path: str
    """The module's name in the model, "blocks.0.attention"; empty for the model itself."""
    kind: str
    """The name of its class."""
    parent: int | None
    is_leaf: bool
    """Whether it holds no other modules: it is drawn as one box, whatever it does inside."""
    parameters: frozenset[str]
    """The names of all its parameters, those of the modules in it too; a tied one has one name everywhere."""
    extra_repr: str = ""
    """What its repr says beyond the class: how many groups, which kernel."""

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]


@dataclass(frozen=True)
class TensorRef:
    """A tensor where it was used: what made it, and its shape there.

    Made by a step (its number), by the caller (the name of the model's argument), or learnt (a parameter's name); a
    constant, such as a mask of places, has none of the three.
    """

    shape: Shape
    op: int | None = None
    argument: str | None = None
    parameter: str | None = None


@dataclass(frozen=True)
class Op:
    """One function on tensors."""

    index: int
    function: str
    """Its name in torch, without underscores: add, linear, scaled_dot_product_attention."""
    inputs: tuple[TensorRef, ...]
    shape: Shape
    """Of its first result."""
    call: int
    """The innermost call that it was a part of."""
    scalar_args: tuple[float | None, ...] = ()
    """Its first arguments: numbers as they are, None for a tensor and for all else."""
    is_causal: bool = False
    is_masked: bool = False
    window: int | None = None


@dataclass(frozen=True)
class ModelTrace:
    """One pass of a model."""

    calls: tuple[ModuleCall, ...]
    ops: tuple[Op, ...]
    inputs: tuple[TensorRef, ...]
    outputs: tuple[TensorRef, ...]
    parameter_sizes: dict[str, int]
    """How many numbers each parameter holds."""

    def enclosing_calls(self, call: int) -> Iterator[ModuleCall]:
        """The call and those around it, from the inside out."""
        at: int | None = call
        while at is not None:
            yield self.calls[at]
            at = self.calls[at].parent

    @cached_property
    def call_stacks(self) -> tuple[tuple[int, ...], ...]:
        """For each call: the calls around it and itself, from the outside in."""
        return tuple(tuple(c.index for c in self.enclosing_calls(call.index))[::-1] for call in self.calls)

    @cached_property
    def depends_on_input(self) -> tuple[bool, ...]:
        """For each step, whether what it makes depends on what the caller gave."""
        live: list[bool] = []
        for op in self.ops:
            live.append(any(v.argument is not None or (v.op is not None and live[v.op]) for v in op.inputs))
        return tuple(live)

    def dependencies(self, values: Iterable[TensorRef]) -> set[int]:
        """The steps that these values depend on."""
        found: set[int] = set()
        waiting = [value.op for value in values if value.op is not None]
        while waiting:
            index = waiting.pop()
            if index not in found:
                found.add(index)
                waiting += [v.op for v in self.ops[index].inputs if v.op is not None]
        return found

    @cached_property
    def output(self) -> TensorRef:
        """The result that most was done for: of several, the others usually lie on its way."""
        return max(self.outputs, key=lambda value: len(self.dependencies([value])))

    @cached_property
    def needed_ops(self) -> tuple[Op, ...]:
        """The steps that lead to the result, in their order."""
        return tuple(self.ops[index] for index in sorted(self.dependencies([self.output])))

    def ops_in(self, call: int) -> list[Op]:
        """The steps of a call, those of the calls in it too, that lead to the result."""
        return [op for op in self.needed_ops if call in self.call_stacks[op.call]]

    def inputs_of(self, call: int) -> list[TensorRef]:
        """What a call is given by others and depends on the caller, each thing once."""
        inside = {op.index for op in self.ops_in(call)}
        found: dict[tuple[int | None, str | None], TensorRef] = {}
        for op in self.ops_in(call):
            for value in op.inputs:
                given = value.argument is not None or (
                    value.op is not None and value.op not in inside and self.depends_on_input[value.op]
                )
                if given:
                    found.setdefault((value.op, value.argument), value)
        return list(found.values())

    def subtrace(self, call: int) -> "ModelTrace":
        """What one call did, as a trace of its own: what others gave it is its argument."""
        ops = self.ops_in(call)
        place = {op.index: i for i, op in enumerate(ops)}
        names = {
            (value.op, value.argument): "input" if i == 0 else f"input {i + 1}"
            for i, value in enumerate(self.inputs_of(call))
        }

        def seen_from_inside(value: TensorRef) -> TensorRef:
            if value.op in place:
                return replace(value, op=place[value.op])
            return TensorRef(value.shape, None, names.get((value.op, value.argument)), value.parameter)

        return replace(
            self,
            ops=tuple(
                replace(op, index=i, inputs=tuple(seen_from_inside(value) for value in op.inputs))
                for i, op in enumerate(ops)
            ),
            inputs=tuple(seen_from_inside(value) for value in self.inputs_of(call)),
            outputs=(seen_from_inside(self._left_by(ops)),),
        )

    def _left_by(self, ops: list[Op]) -> TensorRef:
        """What leaves a call: the last of its results that someone else uses."""
        inside = {op.index for op in ops}
        used = [v for op in self.needed_ops if op.index not in inside for v in op.inputs if v.op in inside]
        used += [self.output] if self.output.op in inside else []
        return max(used, key=lambda value: value.op or 0)
