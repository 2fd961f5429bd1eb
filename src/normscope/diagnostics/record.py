"""The record of an x-ray: plain statistics, no tensors. Findings, reports and comparisons are derived from it.

A record can be saved as JSON, loaded on a machine without the model, and compared with another.
"""

import math
from collections import defaultdict
from dataclasses import dataclass, field

from normscope.diagnostics.stats.attention_use import AttentionUse, MixedAxes
from normscope.diagnostics.stats.dependence import DependenceRecord
from normscope.diagnostics.stats.graph import GraphStats
from normscope.diagnostics.stats.hints import HintStats
from normscope.diagnostics.stats.inputs import InputsRecord
from normscope.diagnostics.stats.loop import BootstrapRecord, CopyRecord, EvalDropout, LoopRecord, PassesRecord
from normscope.diagnostics.stats.losses import LossFunctionStats, ObjectiveStats
from normscope.diagnostics.stats.non_finite import NonFiniteStats
from normscope.diagnostics.stats.ranks import RanksRecord
from normscope.diagnostics.stats.structure import StructureRecord
from normscope.diagnostics.stats.tensors import AttentionStats, NormStats, ResidualJoin, TensorStats, UnitStats

VERSION = 1
"""Format version, incremented when a field changes its meaning; older files are migrated (`record_json`)."""

FINGERPRINT_SIZE = 4
"""Number of values in the fingerprint of a tensor; see `collect/fingerprints.py`."""

_NO_LOOP = LoopRecord()


@dataclass(frozen=True)
class ParameterRecord:
    """A parameter of a module.

    Args:
        name: its name within the module.
        shape, dtype: as in torch.
        requires_grad: whether it is trainable.
        values: statistics of its values at the end.
        gradient: statistics of its gradient; None without one.
        update_ratio: rms of an optimizer update over the rms of the parameter, 0 if that was zero; None without a step.
        in_optimizer: whether an optimizer holds it that stepped or reset gradients; None if none stepped.
        alias_of: full name of the parameter it is tied to (same storage), if that one comes first.
        content_hash: hash of its bytes, equal for copies; None for constants such as zeros.
        identical_rows: whether all its rows are equal, so that its units cannot differ.
        predicted_gain: sqrt(fan_in * mean square), the factor by which a linear layer scales an uncorrelated input.
        update_rms: rms of an optimizer update; None without a step.
        initial, initial_hash, initial_identical_rows: values, content hash and whether all rows are equal, when the
            x-ray began; None if unknown.
        has_changed: whether its values differ from those when the x-ray began.
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
    initial: TensorStats | None = None
    initial_hash: str | None = None
    initial_identical_rows: bool = False
    has_changed: bool = False

    @property
    def has_nonzero_gradient(self) -> bool:
        return self.gradient is not None and self.gradient.rms > 0

    @property
    def is_matrix(self) -> bool:
        """Whether it has two or more dimensions, and finite values."""
        return len(self.shape) >= 2 and self.values.count > 0

    @property
    def fan_in(self) -> float:
        """Fan-in of a linear layer, derived from the predicted gain, which accounts for the weight's layout."""
        if self.predicted_gain and self.values.rms > 0:
            root = self.predicted_gain / self.values.rms
            return max(1.0, root * root)
        return max(1, math.prod(self.shape[1:]))


@dataclass(frozen=True)
class ModuleRecord:
    """A module of the model, or a function called inside one, such as relu.

    Args:
        name: as in `named_modules`, "" for the model itself; for a function, `blocks.0.mlp.relu()`.
        kind: class name, or name of the function.
        is_function: whether it is a function.
        order: index of its first call among all calls; None if it never ran.
        calls: number of calls, over all batches.
        alias_of: the first name of the same module, if it is registered under several.
        input_shapes, output_shapes: shapes of its tensors in the first call.
        dtype: of its first output.
        training: training mode in the first call.
        flops: multiplications and additions per batch, including submodules; None if not counted.
        output_bytes: size of its outputs, per batch.
        input, output, gradient: statistics of its input, of its output, and of the gradient of its output.
        saturated: fraction of saturated outputs of a bounded function; None for other modules.
        produced_non_finite: whether it produced NaN or Inf from finite inputs and weights.
        produced_non_finite_gradient: the same in the backward pass.
        received_non_finite: whether its input had NaN or +Inf. (-Inf is common in masks.)
        only_negative_infinity: whether all non-finite outputs were -Inf.
        fed_by: the modules that produced its inputs, directly or through a view.
        units: statistics per output unit of an activation.
        features: statistics per input feature of a linear layer.
        norm, attention, joins: statistics of norms, attention and residual additions.
        parameters: its own parameters, without those of submodules.
        rms_by_call: output rms of each call in the first batch, if there were several.
        fingerprint, gradient_fingerprint: fingerprints of the output and its gradient; see `collect/fingerprints.py`.
            The difference of two fingerprints over the rms is about the relative difference of the tensors.
        input_fingerprint: fingerprint of the input, if it came from outside the model.
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
        """Number of elements in its own parameters, not counting those tied to earlier ones."""
        return sum(math.prod(parameter.shape) for parameter in self.parameters if not parameter.alias_of)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of its first input; () without one."""
        return self.input_shapes[0] if self.input_shapes else ()

    @property
    def linear_weight(self) -> ParameterRecord | None:
        """Weight of a linear layer or convolution; None for other modules."""
        weights = [p for p in self.parameters if p.predicted_gain is not None and p.is_matrix]
        return weights[0] if weights and self.norm is None else None

    @property
    def bias(self) -> ParameterRecord | None:
        return next((p for p in self.parameters if p.name == "bias" and len(p.shape) == 1), None)

    @property
    def has_zero_weights(self) -> bool:
        """Whether it has weight matrices and all of them are zero."""
        weights = [parameter for parameter in self.parameters if parameter.is_matrix]
        return bool(weights) and all(parameter.values.rms == 0 for parameter in weights)

    @property
    def is_grouped_conv(self) -> bool:
        """Whether it is a grouped convolution. Units with equal weights still read different channels."""
        weight, shape = self.linear_weight, self.input_shape
        if weight is None or len(weight.shape) < 3 or len(shape) < 2:
            return False
        return weight.shape[1] != (shape[1] if len(shape) == len(weight.shape) else shape[0])


@dataclass(frozen=True)
class LossRecord:
    """A cross-entropy computed during the x-ray.

    Args:
        value: the loss.
        num_classes: number of classes.
        logits_function: the function (`softmax`, `log_softmax` or `sigmoid`) whose output was passed as logits, if any.
        logits_module: the innermost module that called that function; None if it was called outside the model.
        logits_source: the innermost module that returned the logits; None if they were changed after that.
        has_cosines: whether the logits are scaled cosines, such as those of CLIP.
    """

    value: float
    num_classes: int
    logits_function: str | None = None
    logits_module: str | None = None
    logits_source: str | None = None
    has_cosines: bool = False


@dataclass(frozen=True)
class StepRecord:
    """A step of an optimizer.

    Args:
        optimizer: its class name.
        lr: the largest learning rate of its parameter groups.
        number: its step count; None if unknown.
        peak_lr: the full learning rate of its schedule; None without a schedule.
    """

    optimizer: str
    lr: float
    number: int | None
    peak_lr: float | None


@dataclass(frozen=True)
class UnregisteredParameter:
    """Trainable weights that the model uses but does not register.

    Args:
        module: the module that used them.
        function: the function that used them, such as `linear`.
        shape: shape of each.
        count: number of weights with this shape.
    """

    module: str
    function: str
    shape: tuple[int, ...]
    count: int


_NO_STRUCTURE, _NO_INPUTS = StructureRecord(), InputsRecord()


@dataclass(frozen=True)
class XrayRecord:
    """An x-ray of a model.

    Args:
        model: class name of the model.
        modules: all modules, in the order of `named_modules`; functions follow the module that called them.
        batches, backward_passes: number of forward passes of the whole model, and of backward passes.
        steps: optimizer steps.
        losses: cross-entropies.
        loss_functions: calls of loss functions with gradients, and of hand-written losses.
        objectives: the scalars that backward passes start from.
        notices: what could not be observed, and why.
        normscope, torch: versions.
        label: a name for the record, such as the training step.
        interrupted: whether the block ended with an exception, so that later events are missing.
        skipped_steps: steps that GradScaler skipped because of a non-finite gradient.
        foreign_optimizer_steps: steps of optimizers that hold none of the model's parameters, but others of the same
            shapes, such as those of an older copy.
        steps_before: training steps before the x-ray; None if unknown.
        steps_without_zero_grad: steps whose gradients still included those of the previous step.
        unregistered_parameters: weights that are not the model's, except those that an optimizer holds.
        ranks: comparison with the other ranks of torch.distributed; None if there are none.
        read_by_sine: modules whose output is an argument of sin or cos.
        non_finite: the first NaN or Inf in a loss or gradient; None if there was none.
        graph: where values went on without their gradient; None if functions were not recorded.
        loop: the optimizers, schedules, clipping and backward passes of the training loop.
        modes: the modes in which the loop called modules that depend on the mode.
        eval_dropouts: dropout that was active in eval mode.
        copies: target networks, averages and other copies of modules.
        bootstraps: regressions to targets with gradients, made from outputs.
        dependence: what outputs depend on, found by experiments with each model that was called from outside.
        attention_use: how attention was scaled and masked; mixed_axes: views that exchange axes.
        structure: how modules were put together.
        inputs: the batches.
        hints: what the user said about the training loop; None if nothing.
        version: format version.
    """

    model: str
    modules: tuple[ModuleRecord, ...]
    batches: int
    backward_passes: int
    steps: tuple[StepRecord, ...] = ()
    losses: tuple[LossRecord, ...] = ()
    loss_functions: tuple[LossFunctionStats, ...] = ()
    objectives: tuple[ObjectiveStats, ...] = ()
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
    ranks: RanksRecord | None = None
    graph: GraphStats | None = None
    non_finite: NonFiniteStats | None = None
    read_by_sine: tuple[str, ...] = ()
    loop: LoopRecord = _NO_LOOP
    modes: tuple[PassesRecord, ...] = ()
    eval_dropouts: tuple[EvalDropout, ...] = ()
    copies: tuple[CopyRecord, ...] = ()
    bootstraps: tuple[BootstrapRecord, ...] = ()
    dependence: tuple[DependenceRecord, ...] = ()
    attention_use: tuple[AttentionUse, ...] = ()
    mixed_axes: tuple[MixedAxes, ...] = ()
    structure: StructureRecord = _NO_STRUCTURE
    inputs: InputsRecord = _NO_INPUTS
    hints: HintStats | None = None
    version: int = field(default=VERSION)

    def __getitem__(self, name: str) -> ModuleRecord:
        """The module with this name."""
        return {module.name: module for module in reversed(self.modules)}[name]

    @property
    def is_loss_curve_cut(self) -> bool:
        """Whether there were more backward passes than the curve, which has the first ones."""
        return max((one.backward_passes for one in self.objectives), default=0) > len(self.loss_curve)

    @property
    def loss_curve(self) -> tuple[float, ...]:
        """Values of the scalar that most backward passes started from; empty without one."""
        return max(self.objectives, key=lambda o: o.backward_passes).values if self.objectives else ()

    @property
    def ran(self) -> list[ModuleRecord]:
        """Modules that ran, in order of their first call."""
        ran = [module for module in self.modules if module.order is not None]
        return sorted(ran, key=lambda module: module.order or 0)

    @property
    def readers(self) -> dict[str, list[ModuleRecord]]:
        """For each module, the modules that read its output, in order of execution."""
        found: dict[str, list[ModuleRecord]] = defaultdict(list)
        for module in self.ran:
            for producer in module.fed_by:
                found[producer].append(module)
        return found

    @property
    def parameter_count(self) -> int:
        return sum(module.parameter_count for module in self.modules if module.alias_of is None)

    def _repr_html_(self) -> str:
        """The report page, for notebooks."""
        from normscope.diagnostics.findings import find
        from normscope.diagnostics.report.page import xray_page
        from normscope.render.notebook import page_frame

        return page_frame(xray_page(self, find(self)))
