"""One forward pass of a model as plain values: the calls of its modules, and the torch functions inside them."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

Shape = tuple[int, ...]


@dataclass(frozen=True)
class ModuleCall:
    """One call of a module."""

    index: int
    path: str
    """The module's name in the model, such as "blocks.0.attention"; empty for the model itself."""
    class_name: str
    parent: int | None
    is_leaf: bool
    """Whether the module has no children. A leaf is drawn as one box."""
    parameters: frozenset[str]
    """The names of all parameters, including those of submodules. A tied parameter has one name everywhere."""
    extra_repr: str = ""
    heads: int | None = None
    """The number of attention heads that the module declares."""

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]


@dataclass(frozen=True)
class TensorRef:
    """A tensor at the place where it is used: its origin, and its shape there.

    The origin is an op (its index), an argument of the model, or a parameter. A constant, such as an attention mask,
    has none of the three.
    """

    shape: Shape
    op: int | None = None
    argument: str | None = None
    parameter: str | None = None


@dataclass(frozen=True)
class Op:
    """One call of a torch function."""

    index: int
    function: str
    """Its normalized name: add, linear, scaled_dot_product_attention."""
    inputs: tuple[TensorRef, ...]
    shape: Shape
    """The shape of its first output."""
    call: int
    """The innermost module call it is part of."""
    scalar_args: tuple[float | None, ...] = ()
    """Its first positional arguments: numbers as they are, None for everything else."""
    is_causal: bool = False
    is_masked: bool = False
    window: int | None = None


@dataclass(frozen=True)
class ModelTrace:
    """One forward pass of a model."""

    calls: tuple[ModuleCall, ...]
    ops: tuple[Op, ...]
    inputs: tuple[TensorRef, ...]
    outputs: tuple[TensorRef, ...]
    parameter_sizes: dict[str, int]
    """The number of elements of each parameter."""

    @cached_property
    def call_stacks(self) -> tuple[tuple[int, ...], ...]:
        """For each call, the calls around it and itself, the outermost first."""
        stacks: list[tuple[int, ...]] = []
        for call in self.calls:
            stacks.append((*(() if call.parent is None else stacks[call.parent]), call.index))
        return tuple(stacks)

    @cached_property
    def depends_on_input(self) -> tuple[bool, ...]:
        """For each op, whether its output depends on the model's inputs."""
        live: list[bool] = []
        for op in self.ops:
            live.append(any(v.argument is not None or (v.op is not None and live[v.op]) for v in op.inputs))
        return tuple(live)

    def dependencies(self, values: Iterable[TensorRef]) -> set[int]:
        """Return the indices of all ops that these tensors depend on."""
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
        """The output with the most dependencies. Other outputs are usually intermediate results of it."""
        return max(self.outputs, key=lambda value: len(self.dependencies([value])))

    @cached_property
    def needed_ops(self) -> tuple[Op, ...]:
        """The ops that the output depends on, in order."""
        return tuple(self.ops[index] for index in sorted(self.dependencies([self.output])))

    def ops_in(self, call: int) -> list[Op]:
        """Return the needed ops of a call, including those of the calls inside it."""
        return [op for op in self.needed_ops if call in self.call_stacks[op.call]]

    def inputs_of(self, call: int) -> list[TensorRef]:
        """Return the tensors that enter a call from outside and depend on the model's inputs, each once."""
        inside = {op.index for op in self.ops_in(call)}
        found: dict[tuple[int | None, str | None], TensorRef] = {}
        for value in (value for op in self.ops_in(call) for value in op.inputs):
            is_computed = value.op is not None and value.op not in inside and self.depends_on_input[value.op]
            if value.argument is not None or is_computed:
                found.setdefault((value.op, value.argument), value)
        return list(found.values())

    def subtrace(self, call: int) -> "ModelTrace":
        """Return the trace of one call. Tensors that enter from outside become its arguments."""
        ops = self.ops_in(call)
        position = {op.index: i for i, op in enumerate(ops)}
        inputs = self.inputs_of(call)
        names = {(value.op, value.argument): f"input {i + 1}" if i else "input" for i, value in enumerate(inputs)}

        def remap(value: TensorRef) -> TensorRef:
            if value.op in position:
                return replace(value, op=position[value.op])
            return TensorRef(value.shape, None, names.get((value.op, value.argument)), value.parameter)

        inside = tuple(replace(op, index=i, inputs=tuple(map(remap, op.inputs))) for i, op in enumerate(ops))
        return replace(self, ops=inside, inputs=tuple(map(remap, inputs)), outputs=(remap(self._output_of(ops)),))

    def _output_of(self, ops: list[Op]) -> TensorRef:
        """Return the last output of these ops that is used outside of them."""
        inside = {op.index for op in ops}
        used = [v for op in self.needed_ops if op.index not in inside for v in op.inputs if v.op in inside]
        used += [self.output] if self.output.op in inside else []
        return max(used, key=lambda value: value.op or 0)
