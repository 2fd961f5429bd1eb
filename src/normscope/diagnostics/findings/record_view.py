"""A record seen the way findings ask about it: who runs when, who reads whose output, who stands where in the model."""

import itertools
import math
from collections import defaultdict
from functools import cached_property

from normscope.diagnostics.record import ModuleRecord, ParameterRecord, TensorStats, XrayRecord

FEW_STEPS = 10
"""After more a weight may be anywhere."""

MOVED = 0.1
"""Of its size: rates fall, so that steps before those that were seen may have been longer."""


class View:
    """A record, with what several findings need to know of it worked out once.

    Args:
        record: the record.
    """

    def __init__(self, record: XrayRecord) -> None:
        self.record = record

    @cached_property
    def modules(self) -> dict[str, ModuleRecord]:
        """By name; a module that has several names stands under the first one alone."""
        return {module.name: module for module in self.record.modules if module.alias_of is None}

    @cached_property
    def ran(self) -> list[ModuleRecord]:
        """Those that ran, in the order of their first call."""
        found = [module for module in self.modules.values() if module.order is not None]
        return sorted(found, key=lambda module: module.order or 0)

    @cached_property
    def readers(self) -> dict[str, list[ModuleRecord]]:
        """Of each module, those that were given its output."""
        found: dict[str, list[ModuleRecord]] = defaultdict(list)
        for module in self.ran:
            for maker in module.fed_by:
                found[maker].append(module)
        return found

    @cached_property
    def joining(self) -> dict[str, list[ModuleRecord]]:
        """Of each module whose output is added to something, or has something added to it, those that do so."""
        found: dict[str, list[ModuleRecord]] = defaultdict(list)
        for module in self.ran:
            for join in module.joins:
                for name in (join.stream_source, join.branch_source):
                    if name is not None:
                        found[name].append(module)
        return found

    @cached_property
    def gradients(self) -> list[TensorStats]:
        """Those that came to weights."""
        found = [parameter.gradient for module in self.modules.values() for parameter in module.parameters]
        return [gradient for gradient in found if gradient is not None]

    @cached_property
    def has_gradients(self) -> bool:
        """Whether a backward pass was seen: some weight has a gradient that is more than zero."""
        return any(gradient.rms > 0 for gradient in self.gradients)

    @cached_property
    def matrices(self) -> list[tuple[ModuleRecord, ParameterRecord]]:
        """The weights that multiply, each once, with the modules that they belong to; in the order of the model."""
        return [
            (module, parameter)
            for module in self.modules.values()
            for parameter in module.parameters
            if parameter.alias_of is None
            and len(parameter.shape) >= 2
            and parameter.values.count
            and module.norm is None
        ]

    @cached_property
    def awake(self) -> set[str]:
        """The modules that ran, or have one inside that did."""
        return {outer for module in self.ran for outer in _with_outer(module.name)}

    @cached_property
    def reached(self) -> set[str]:
        """The modules that have a weight with a gradient, or one inside that has."""
        with_gradient = (m for m in self.modules.values() if any(p.gradient is not None for p in m.parameters))
        return {outer for module in with_gradient for outer in _with_outer(module.name)}

    @cached_property
    def steps_made(self) -> int | None:
        """How many steps the model has behind it, as its run or its optimisers count them; None if nobody knows."""
        numbers = [self.record.steps_before, *(step.number for step in self.record.steps)]
        return max((number for number in numbers if number is not None), default=None)

    @cached_property
    def steps_before(self) -> int:
        """How many of them were made before the x-ray looked, as far as known."""
        if self.record.steps_before is not None:
            return self.record.steps_before
        first: dict[str, int] = {}
        for step in self.record.steps:
            first.setdefault(step.optimizer, step.number or 1)
        return max(first.values(), default=1) - 1

    def has_moved(self, weight: ParameterRecord) -> bool:
        """Whether steps have made a weight what it is, so that nothing can be told of its start: there were many, or
        they come to some of its size."""
        made = self.steps_made or len(self.record.steps)
        return made > FEW_STEPS or made * (weight.update_rms or 0.0) >= MOVED * weight.values.rms > 0

    def of_the_start(self, advice: str) -> str:
        """Advice on how to start, for a model that may have been brought here by its steps instead."""
        if (self.steps_made or 0) <= FEW_STEPS:
            return advice
        return f"lower the learning rate, clip gradients or warm up, if it was well at its start; else {advice}"

    def execution_order(self, name: str) -> int:
        """Where in the order of execution a module stands; those that never ran stand at the end."""
        module = self.modules.get(name)
        return len(self.record.modules) if module is None or module.order is None else module.order


def is_moved(parameter: ParameterRecord) -> bool:
    return parameter.gradient is not None and parameter.gradient.rms > 0


def linear_weight(module: ModuleRecord) -> ParameterRecord | None:
    """The matrix of a linear layer or convolution; None for other modules."""
    for parameter in module.parameters if module.norm is None else ():
        if parameter.predicted_gain is not None and parameter.values.count and len(parameter.shape) >= 2:
            return parameter
    return None


def is_blank(module: ModuleRecord) -> bool:
    """Whether it has weights that multiply, and all of them are zero."""
    weights = [p for p in module.parameters if len(p.shape) >= 2 and p.values.count]
    return bool(weights) and all(parameter.values.rms == 0 for parameter in weights)


def blank_fix(name: str) -> str:
    return f"all weights of {called(name)} are zero: draw them, as with nn.init.kaiming_normal_(weight)"


def bias_of(module: ModuleRecord) -> ParameterRecord | None:
    for parameter in module.parameters:
        if parameter.name == "bias" and len(parameter.shape) == 1:
            return parameter
    return None


def is_grouped(module: ModuleRecord, weight: ParameterRecord) -> bool:
    """Whether it is a convolution whose units read different channels: then alike units are not the same unit."""
    if len(weight.shape) < 3 or not module.input_shapes or len(module.input_shapes[0]) < 2:
        return False
    shape = module.input_shapes[0]
    channels = shape[1] if len(shape) == len(weight.shape) else shape[0]
    return channels != weight.shape[1]


def fan_in(weight: ParameterRecord) -> float:
    """How many numbers each unit of a linear layer sums up; from the predicted gain, which knows which way it lies."""
    if weight.predicted_gain and weight.values.rms > 0:
        root = weight.predicted_gain / weight.values.rms
        return max(1.0, root * root)
    return max(1, math.prod(weight.shape[1:]))


def role(name: str) -> str:
    """The name without its numbers: the same for the same part of all blocks.

    >>> role("blocks.3.mlp.fc1"), role("blocks.3.mlp.relu()#2")
    ('blocks.*.mlp.fc1', 'blocks.*.mlp.relu()#2')
    """
    return ".".join("*" if part.isdigit() else part for part in name.split("."))


def parent(name: str) -> str:
    """The name of the module that it is in.

    >>> parent("blocks.3.mlp"), parent("blocks")
    ('blocks.3', '')
    """
    return name.rpartition(".")[0]


def _with_outer(name: str) -> list[str]:
    """The name, and those of all that it is in."""
    parts = name.split(".")
    return ["", *(".".join(parts[: i + 1]) for i in range(len(parts)))]


def holder(names: list[str]) -> str:
    """The innermost module that holds all of these, or is the only one of them.

    >>> holder(["layers.3.fc1", "layers.3.fc2"]), holder(["layers.3.fc1"]), holder(["a", "b"])
    ('layers.3', 'layers.3.fc1', '')
    """
    parts = [name.split(".") for name in names]
    shared = [column[0] for column in itertools.takewhile(lambda c: len(set(c)) == 1, zip(*parts, strict=False))]
    return ".".join(shared)


def is_inside(name: str, outer: str) -> bool:
    """Whether a module is another one, or in it."""
    return not outer or name == outer or name.startswith(f"{outer}.")


def called(name: str) -> str:
    """How a text calls a module.

    >>> called("blocks.3"), called("")
    ('`blocks.3`', 'the model')
    """
    return f"`{name}`" if name else "the model"


def short(value: float) -> str:
    """A figure for a text.

    >>> short(0.000123456), short(12.0), short(1234567.0)
    ('0.000123', '12', '1.23e+06')
    """
    return f"{value:.3g}"


def percent(share: float) -> str:
    """A share for a text.

    >>> percent(0.5), percent(0.0012)
    ('50%', '0.12%')
    """
    return f"{100 * share:.3g}%"


def median(values: list[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else 0.0
