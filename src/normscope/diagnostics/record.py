"""What an x-ray keeps: plain figures, no tensors. Everything else (findings, pictures, comparisons) is made from this.

A record is a value: it can be saved as JSON, loaded on a machine without the model, and compared with another.
"""

from dataclasses import dataclass, field

from normscope.diagnostics.tensor_stats import AttentionStats, NormStats, ResidualJoin, TensorStats, UnitStats

__all__ = [
    "FINGERPRINT_SIZE",
    "VERSION",
    "AttentionStats",
    "LossRecord",
    "ModuleRecord",
    "NormStats",
    "ParameterRecord",
    "ResidualJoin",
    "StepRecord",
    "TensorStats",
    "UnitStats",
    "XrayRecord",
]

VERSION = 1
"""Raised whenever a field changes its meaning; a record of a later version is refused by name."""

FINGERPRINT_SIZE = 4
"""How many numbers the prints of a tensor are; see `prints.py`."""


@dataclass(frozen=True)
class ParameterRecord:
    """A weight of a module.

    Args:
        name: its own, without the module's.
        shape, dtype: as torch has them.
        trained: whether it asks for a gradient.
        values: its figures at the end.
        gradient: those of its gradient; None if none came.
        update: the rms of its change by one step over its own rms, 0 if that was zero; None if no step was seen.
        optimised: whether an optimiser that stepped has it; None if none stepped.
        same_as: the full name of the parameter that it is tied to (the same memory), if it comes later than that one.
        fingerprint: of its bytes; equal for weights that are copies. None for constants such as zeros.
        rows_alike: whether all its rows are the same, so that its units can never differ.
        predicted_gain: sqrt(fan_in * mean of squares), by which a linear layer scales what is random to it.
        change: the rms of its change by one step; None if no step was seen.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    requires_grad: bool
    values: TensorStats
    gradient: TensorStats | None
    update_ratio: float | None
    in_optimizer: bool | None
    alias_of: str | None
    content_hash: str | None
    identical_rows: bool
    predicted_gain: float | None
    update_rms: float | None = None


@dataclass(frozen=True)
class ModuleRecord:
    """One module of the model; or a function, such as relu, that is called inside of one.

    Args:
        name: as `named_modules` has it, "" for the model itself; of a function `blocks.0.mlp.relu()`.
        kind: its class, or the function's name.
        is_function: whether it is a function.
        order: the place of its first call among all; None if it never ran.
        calls: how often it was called, over all batches.
        same_as: the first name of the same module, if it has several.
        inputs, outputs: the shapes of its tensors at the first call.
        dtype: of its first output.
        training: its mode at the first call.
        flops: multiplications and additions of one batch, its children's included; None if not counted.
        bytes: of its outputs, of one batch.
        entering, output, gradient: what came in, what came out, and the loss's gradient of what came out.
        saturated: the share of outputs at the flat ends of a bounded function; None for other modules.
        made_unreal: whether it made infinite numbers, or none, of finite inputs and finite weights.
        made_unreal_gradient: the same on the way back.
        given_unreal: whether it was given NaN or plus infinity. (Minus infinity is what masks are made of.)
        only_hides: whether all that was not finite in its outputs was minus infinity.
        fed_by: the modules whose outputs it was given, as they were or seen from another side.
        units, features: of its output if it is an activation; of its input if it is linear.
        norm, attention, joins: what is particular to these.
        parameters: its own, without its children's.
        by_call: the rms of the output of each call in the first batch, if there were several.
        prints, gradient_prints: of the output and of its gradient; see `prints.py`. The difference of two outputs'
            prints, over their rms, is about the relative difference of the outputs.
        entering_prints: of what came in, if it came from outside of the model.
    """

    name: str
    kind: str
    is_function: bool = False
    order: int | None = None
    calls: int = 0
    alias_of: str | None = None
    input_shapes: tuple[tuple[int, ...], ...] = ()
    output_shapes: tuple[tuple[int, ...], ...] = ()
    dtype: str | None = None
    training: bool | None = None
    flops: int | None = None
    output_bytes: int = 0
    input: TensorStats | None = None
    output: TensorStats | None = None
    gradient: TensorStats | None = None
    saturated: float | None = None
    produced_non_finite: bool = False
    produced_non_finite_gradient: bool = False
    received_non_finite: bool = False
    only_negative_infinity: bool = False
    fed_by: tuple[str, ...] = ()
    units: UnitStats | None = None
    features: UnitStats | None = None
    norm: NormStats | None = None
    attention: AttentionStats | None = None
    joins: tuple[ResidualJoin, ...] = ()
    parameters: tuple[ParameterRecord, ...] = ()
    rms_by_call: tuple[float, ...] = ()
    fingerprint: tuple[float, ...] = ()
    gradient_fingerprint: tuple[float, ...] = ()
    input_fingerprint: tuple[float, ...] = ()

    @property
    def parameter_count(self) -> int:
        """How many numbers its own parameters have; those that are tied to earlier ones do not count."""
        total = 0
        for parameter in self.parameters:
            size = 1
            for length in parameter.shape:
                size *= length
            total += 0 if parameter.alias_of else size
        return total


@dataclass(frozen=True)
class LossRecord:
    """A cross-entropy that was computed while the x-ray looked.

    Args:
        value: the first one.
        classes: how many classes there were to choose from.
        given: the function, `softmax`, `log_softmax` or `sigmoid`, whose output it was given as logits; else None.
        given_by: the innermost module that called that function; None if none did, but code after the model.
    """

    value: float
    num_classes: int
    logits_function: str | None = None
    logits_module: str | None = None


@dataclass(frozen=True)
class StepRecord:
    """A step of an optimiser: its class, the largest learning rate, which step of its life it was, and warm-up."""

    optimizer: str
    lr: float
    number: int | None
    peak_lr: float | None
    """The rate that its schedule has as its full one, if there is a schedule."""


@dataclass(frozen=True)
class UnregisteredParameter:
    """Weights that took part in the model's run, ask for a gradient, and are not the model's.

    Args:
        module: where they were used.
        function: what used them, such as `linear`.
        shape: of each.
        count: how many of this shape.
    """

    module: str
    function: str
    shape: tuple[int, ...]
    count: int


@dataclass(frozen=True)
class XrayRecord:
    """An x-ray of a model.

    Args:
        model: its class.
        modules: all of them, in the order of `named_modules`, functions after the module that called them.
        batches, backwards, steps: how many forward passes of the whole model, backward passes, and optimiser's steps.
        skipped_steps: how many more a GradScaler left out, since a gradient was not finite.
        strange_steps: how many more were made by optimisers that have none of the model's weights, but others of the
            very same shapes, such as those of an older copy.
        steps_before: how many steps the model had behind it before all these; None if nobody said.
        piled_steps: how many were made with gradients that still had those of the step before in them.
        strangers: weights that took part and are not the model's; without those that an optimiser was seen to have.
        losses: the cross-entropies that were seen.
        notices: what could not be seen, and why.
        broken_off: whether the block ended with an error, so that what comes after it was not seen.
        normscope, torch: versions.
        version: of this format.
    """

    model: str
    modules: tuple[ModuleRecord, ...]
    batches: int
    backward_passes: int
    steps: tuple[StepRecord, ...] = ()
    losses: tuple[LossRecord, ...] = ()
    notices: tuple[str, ...] = ()
    normscope: str = ""
    torch: str = ""
    label: str = ""
    interrupted: bool = False
    skipped_steps: int = 0
    foreign_optimizer_steps: int = 0
    steps_before: int | None = None
    steps_without_zero_grad: int = 0
    unregistered_parameters: tuple[UnregisteredParameter, ...] = ()
    version: int = field(default=VERSION)

    def __getitem__(self, name: str) -> ModuleRecord:
        """The module of this name."""
        for module in self.modules:
            if module.name == name:
                return module
        raise KeyError(name)

    @property
    def ran(self) -> list[ModuleRecord]:
        """Those that ran, in the order of their first call."""
        return sorted((module for module in self.modules if module.order is not None), key=_order)

    @property
    def parameter_count(self) -> int:
        return sum(module.parameter_count for module in self.modules if module.alias_of is None)


def _order(module: ModuleRecord) -> int:
    assert module.order is not None
    return module.order
