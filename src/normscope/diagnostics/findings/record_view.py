"""A record with the derived data that checks need: execution order, readers of each output, module names."""

import itertools
import math
from collections import defaultdict
from collections.abc import Collection
from functools import cached_property

from normscope.diagnostics.record import ModuleRecord, ParameterRecord, TensorStats, XrayRecord

FEW_STEPS = 10
"""After more steps than this, a weight may be far from its initialization."""

CHANGED = 0.1
"""Fraction of a weight's rms. Learning rates decay, so earlier, unobserved steps may have been larger."""


class RecordView:
    """A record, with data that several checks share computed once.

    Args:
        record: the record.
    """

    def __init__(self, record: XrayRecord) -> None:
        self.record = record

    @cached_property
    def modules(self) -> dict[str, ModuleRecord]:
        """Modules by name. A shared module appears only under its first name."""
        return {module.name: module for module in self.record.modules if module.alias_of is None}

    @cached_property
    def ran(self) -> list[ModuleRecord]:
        """Modules that ran, in order of their first call."""
        found = [module for module in self.modules.values() if module.order is not None]
        return sorted(found, key=lambda module: module.order or 0)

    @cached_property
    def readers(self) -> dict[str, list[ModuleRecord]]:
        """For each module, the modules that read its output."""
        found: dict[str, list[ModuleRecord]] = defaultdict(list)
        for module in self.ran:
            for producer in module.fed_by:
                found[producer].append(module)
        return found

    @cached_property
    def adders(self) -> dict[str, list[ModuleRecord]]:
        """For each module whose output takes part in a residual addition, the modules that perform the addition."""
        found: dict[str, list[ModuleRecord]] = defaultdict(list)
        for module in self.ran:
            for join in module.joins:
                for name in (join.stream_source, join.branch_source):
                    if name is not None:
                        found[name].append(module)
        return found

    @cached_property
    def gradients(self) -> list[TensorStats]:
        """Gradients of all parameters that got one."""
        found = [parameter.gradient for module in self.modules.values() for parameter in module.parameters]
        return [gradient for gradient in found if gradient is not None]

    @cached_property
    def has_gradients(self) -> bool:
        """Whether a backward pass was recorded: some parameter has a nonzero gradient."""
        return any(gradient.rms > 0 for gradient in self.gradients)

    @cached_property
    def matrices(self) -> list[tuple[ModuleRecord, ParameterRecord]]:
        """Each distinct weight with two or more dimensions, with its module, in model order."""
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
    def executed_names(self) -> set[str]:
        """Names of modules that ran or contain one that ran."""
        return {outer for module in self.ran for outer in _with_outer(module.name)}

    @cached_property
    def names_with_gradient(self) -> set[str]:
        """Names of modules that have a parameter with a gradient, directly or in a submodule."""
        with_gradient = (m for m in self.modules.values() if any(p.gradient is not None for p in m.parameters))
        return {outer for module in with_gradient for outer in _with_outer(module.name)}

    @cached_property
    def total_steps(self) -> int | None:
        """Training steps so far, as counted by the run or the optimizers; None if unknown."""
        numbers = [self.record.steps_before, *(step.number for step in self.record.steps)]
        return max((number for number in numbers if number is not None), default=None)

    @cached_property
    def steps_before_xray(self) -> int:
        """Training steps before the x-ray started, as far as known."""
        if self.record.steps_before is not None:
            return self.record.steps_before
        first: dict[str, int] = {}
        for step in self.record.steps:
            first.setdefault(step.optimizer, step.number or 1)
        return max(first.values(), default=1) - 1

    def is_trained(self, weight: ParameterRecord) -> bool:
        """Whether training has changed a weight so much that it says nothing about its initialization."""
        made = self.total_steps or len(self.record.steps)
        return made > FEW_STEPS or made * (weight.update_rms or 0.0) >= CHANGED * weight.values.rms > 0

    @cached_property
    def after_training_advice(self) -> str:
        """What precedes advice on initialization: for a trained model, suggest the optimizer settings first."""
        if (self.total_steps or 0) <= FEW_STEPS:
            return ""
        first = "if the model was healthy at initialization, lower the learning rate, clip gradients or add warmup"
        return f"{first}; otherwise "

    def execution_order(self, name: str) -> int:
        """Position of a module in the order of execution; modules that never ran come last."""
        module = self.modules.get(name)
        return len(self.record.modules) if module is None or module.order is None else module.order


def has_nonzero_gradient(parameter: ParameterRecord) -> bool:
    return parameter.gradient is not None and parameter.gradient.rms > 0


def linear_weight(module: ModuleRecord) -> ParameterRecord | None:
    """Weight of a linear layer or convolution; None for other modules."""
    for parameter in module.parameters if module.norm is None else ():
        if parameter.predicted_gain is not None and parameter.values.count and len(parameter.shape) >= 2:
            return parameter
    return None


def has_zero_weights(module: ModuleRecord) -> bool:
    """Whether the module has weight matrices and all of them are zero."""
    weights = [p for p in module.parameters if len(p.shape) >= 2 and p.values.count]
    return bool(weights) and all(parameter.values.rms == 0 for parameter in weights)


def zero_weights_fix(name: str) -> str:
    return f"all weights of {module_ref(name)} are zero: initialize them, e.g. nn.init.kaiming_normal_(weight)"


def bias_of(module: ModuleRecord) -> ParameterRecord | None:
    for parameter in module.parameters:
        if parameter.name == "bias" and len(parameter.shape) == 1:
            return parameter
    return None


def is_grouped_conv(module: ModuleRecord, weight: ParameterRecord) -> bool:
    """Whether it is a grouped convolution. Its units read different channels, so equal weights are not equal units."""
    if len(weight.shape) < 3 or not module.input_shapes or len(module.input_shapes[0]) < 2:
        return False
    shape = module.input_shapes[0]
    channels = shape[1] if len(shape) == len(weight.shape) else shape[0]
    return channels != weight.shape[1]


def fan_in(weight: ParameterRecord) -> float:
    """Fan-in of a linear layer, derived from the predicted gain, which accounts for the weight's layout."""
    if weight.predicted_gain and weight.values.rms > 0:
        root = weight.predicted_gain / weight.values.rms
        return max(1.0, root * root)
    return max(1, math.prod(weight.shape[1:]))


def name_pattern(name: str) -> str:
    """Replace the indices in a module name by *: the result is the same for the same part of every block.

    >>> name_pattern("blocks.3.mlp.fc1"), name_pattern("blocks.3.mlp.relu()#2")
    ('blocks.*.mlp.fc1', 'blocks.*.mlp.relu()#2')
    """
    return ".".join("*" if part.isdigit() else part for part in name.split("."))


def parent_name(name: str) -> str:
    """Name of the parent module.

    >>> parent_name("blocks.3.mlp"), parent_name("blocks")
    ('blocks.3', '')
    """
    return name.rpartition(".")[0]


def outermost_outside(names: Collection[str], name: str) -> str:
    """The outermost module around this one, or itself, that is not among the names.

    >>> outermost_outside({"", "blocks"}, "blocks.3.mlp.fc1")
    'blocks.3'
    """
    while parent_name(name) and parent_name(name) not in names:
        name = parent_name(name)
    return name


def _with_outer(name: str) -> list[str]:
    """The name and those of all modules that contain it."""
    parts = name.split(".")
    return ["", *(".".join(parts[: i + 1]) for i in range(len(parts)))]


def common_parent(names: list[str]) -> str:
    """The innermost module that contains all of these, or the only one of them.

    >>> common_parent(["layers.3.fc1", "layers.3.fc2"]), common_parent(["layers.3.fc1"]), common_parent(["a", "b"])
    ('layers.3', 'layers.3.fc1', '')
    """
    parts = [name.split(".") for name in names]
    shared = [column[0] for column in itertools.takewhile(lambda c: len(set(c)) == 1, zip(*parts, strict=False))]
    return ".".join(shared)


def is_inside(name: str, outer: str) -> bool:
    """Whether a module is `outer` or inside it."""
    return not outer or name == outer or name.startswith(f"{outer}.")


def module_ref(name: str) -> str:
    """A module's name as it appears in messages.

    >>> module_ref("blocks.3"), module_ref("")
    ('`blocks.3`', 'the model')
    """
    return f"`{name}`" if name else "the model"


def parameter_name(module: ModuleRecord, parameter: ParameterRecord) -> str:
    """Full name of a parameter, as `named_parameters` gives it."""
    return f"{module.name}.{parameter.name}" if module.name else parameter.name
