"""Initialization problems: wrong gain, nonzero mean, weights unlike those of other blocks, identical units."""

import math
from collections import defaultdict

from normscope.diagnostics.findings.base import Finding
from normscope.diagnostics.findings.record_view import (
    RecordView,
    bias_of,
    fan_in,
    is_grouped_conv,
    linear_weight,
    median,
    module_ref,
    name_pattern,
    parent_name,
)
from normscope.diagnostics.record import ModuleRecord, ParameterRecord
from normscope.render.formatting import format_short

LARGEST_GAIN = 5 * 5 / 3
"""Five times the largest gain that theory asks for: 5/3, for tanh (ReLU: sqrt(2)). Weights from N(0, 1) exceed it from
a width of 70 on. Trained weights of that width would need an rms of 1; they have 0.02 to 0.3."""

MAX_GAIN_RATIO = 10.0
"""Measured over predicted gain, or half of sqrt(fan_in) if that is more. Weights scale an uncorrelated input by
sqrt(fan_in) rms(w); trained weights are aligned with their input and reach 3 to 5. No matrix can exceed
sqrt(fan_in)."""

MIN_UNITS = 16
"""Outputs needed for the measured gain: over n of them it is known to within 1 / sqrt(2 n), 18%."""

OFF_CENTER = 0.5
"""Mean of a weight over its rms. Random weights have 1 / sqrt(numel), uniform ones from 0 to 1 sqrt(3) / 2 = 0.87."""

MIN_ELEMENTS = 256
"""With fewer elements, the mean may be far from zero by chance or by training."""

OUTLIER_RATIO = 10.0
"""Ratio of a weight's rms to the median of the same weight in other blocks. Depth-dependent initializations differ by
sqrt(depth), and training adds a factor of two or three."""

MIN_PEERS = 3


def check_initial_weights(view: RecordView) -> list[Finding]:
    found = [*_outliers(view)]
    for module in view.ran:
        weight = linear_weight(module)
        if weight is not None and weight.alias_of is None and weight.requires_grad:  # frozen weights are intended
            found += (
                _identical_units(module, weight) or _uncentered(view, module, weight) or _gain(view, module, weight)
            )
        elif weight is None:
            found += _identical_rows(module)
    return found


def _identical_units(module: ModuleRecord, weight: ParameterRecord) -> list[Finding]:
    constant = weight.values.min == weight.values.max != 0 and weight.shape[0] > 1
    if is_grouped_conv(module, weight) or not (weight.identical_rows or constant):
        return []
    return [_identical_finding(module, weight.shape[0], "units")]


def _identical_rows(module: ModuleRecord) -> list[Finding]:
    """Identical rows of an embedding: a matrix called "weight" that is not a linear layer's."""
    for parameter in module.parameters:
        is_table = parameter.name == "weight" and len(parameter.shape) == 2 and parameter.requires_grad
        if is_table and parameter.identical_rows:
            return [_identical_finding(module, parameter.shape[0], "rows")]
    return []


def _identical_finding(module: ModuleRecord, count: int, what: str) -> Finding:
    return Finding(
        "identical-units",
        "error",
        module.name,
        f"all {count} {what} of {module_ref(module.name)} have the same weights",
        {what: count},
        f"All {what} produce the same output, so the layer is effectively one {what[:-1]} wide. If the next layer "
        "treats them alike, they also get the same gradient and stay identical.",
        f"initialize the weight of {module_ref(module.name)} at random: nn.init.kaiming_normal_(weight)",
    )


def _uncentered(view: RecordView, module: ModuleRecord, weight: ParameterRecord) -> list[Finding]:
    values = weight.values
    if values.count < MIN_ELEMENTS or is_grouped_conv(module, weight) or values.rms == 0 or view.is_trained(weight):
        return []
    off = abs(values.mean) / values.rms
    if off < OFF_CENTER:
        return []
    measured = measured_gain(module)
    evidence: dict[str, float | str] = {
        "mean / rms": off,
        "mean": values.mean,
        "predicted gain": weight.predicted_gain or 0.0,
    }
    if measured is not None:
        evidence["measured gain"] = measured
    return [
        Finding(
            "uncentered-weights",
            "warning",
            module.name,
            f"the weights of {module_ref(module.name)} are not centered: mean {format_short(values.mean)}, rms "
            f"{format_short(values.rms)}",
            evidence,
            "All units share the mean, so they all output nearly the same value, the scaled sum of the input. It "
            "dominates the differences between units and grows with the width.",
            "initialize the weight with zero mean, e.g. nn.init.kaiming_normal_(weight) (torch.rand samples from 0 to "
            "1; torch.randn has zero mean)",
        )
    ]


def measured_gain(module: ModuleRecord) -> float | None:
    """Output rms, without the bias, over input rms; None if unknown."""
    inputs, output = module.input, module.output
    if inputs is None or output is None or inputs.rms == 0 or not output.count:
        return None
    bias = bias_of(module)
    square = output.rms * output.rms - (bias.values.rms * bias.values.rms if bias is not None else 0.0)
    return math.sqrt(square) / inputs.rms if square > 0 else None


def is_before_norm(view: RecordView, module: ModuleRecord) -> bool:
    """Whether only norms read its output, so that its scale does not matter."""
    readers = view.readers.get(module.name, [])
    return bool(readers) and all(reader.norm is not None for reader in readers)


def _gain(view: RecordView, module: ModuleRecord, weight: ParameterRecord) -> list[Finding]:
    predicted, measured = weight.predicted_gain or 0.0, measured_gain(module)
    if predicted >= LARGEST_GAIN and not is_before_norm(view, module):  # trained weights: check_exploded_weights
        return [] if view.is_trained(weight) else [_gain_finding(view, module, weight, predicted, measured)]
    if measured is None or predicted == 0 or weight.shape[0] < MIN_UNITS or is_grouped_conv(module, weight):
        return []
    # A weight that starts at zero is fully aligned with its input after one step, but still small.
    if measured >= LARGEST_GAIN and measured / predicted >= max(MAX_GAIN_RATIO, math.sqrt(fan_in(weight)) / 2):
        return [_gain_finding(view, module, weight, predicted, measured)]
    return []


def _gain_finding(
    view: RecordView, module: ModuleRecord, weight: ParameterRecord, predicted: float, measured: float | None
) -> Finding:
    name, rms = module_ref(module.name), weight.values.rms
    if predicted >= LARGEST_GAIN:
        title = f"the weights of {name} have a gain of {format_short(predicted)}; theory asks for 1 to 1.7"
        why = (
            f"With a fan-in of {fan_in(weight):.0f} and a weight rms of {format_short(rms)}, the output is "
            f"{format_short(predicted)} times larger than the input. Later layers saturate or are drowned out."
        )
        fix = f"initialize with std {format_short(1 / math.sqrt(fan_in(weight)))}, 1 / sqrt(fan_in), instead of "
        fix += format_short(rms)
        if view.total_steps is None:
            fix += "; if training made the weights this large, lower the learning rate, clip gradients or add warmup"
    else:
        title = (
            f"{name} scales its input by {format_short(measured or 0.0)}; its weights predict {format_short(predicted)}"
        )
        why = (
            "Weights scale an uncorrelated input by sqrt(fan_in) times their rms. A layer that does much more applies "
            "an extra factor, or its input is nearly constant."
        )
        fix = "check its forward for a scale that is applied twice, and its input for a large mean"
    evidence: dict[str, float | str] = {"predicted gain": predicted, "weight rms": rms}
    if measured is not None:
        evidence |= {"measured gain": measured, "measured / predicted": measured / predicted if predicted else 0.0}
    return Finding("abnormal-gain", "warning", module.name, title, evidence, why, fix)


def _outliers(view: RecordView) -> list[Finding]:
    """Find matrices whose rms is far from the median of the same weight in other blocks.

    In a sequence of sibling layers the last one is skipped: it may be the output layer, which often starts at zero.
    """
    peers: dict[tuple[str, tuple[int, ...]], list[tuple[ModuleRecord, ParameterRecord]]] = defaultdict(list)
    for module, parameter in view.matrices:
        if "*" in name_pattern(module.name) and parameter.values.rms > 0:
            peers[name_pattern(f"{module.name}.{parameter.name}"), parameter.shape].append((module, parameter))
    found = []
    for group in peers.values():
        if len(group) <= MIN_PEERS:
            continue
        middle = median([parameter.values.rms for _, parameter in group])
        siblings = len({parent_name(module.name) for module, _ in group}) == 1
        last = max((m for m, _ in group), key=lambda module: view.execution_order(module.name)) if siblings else None
        for module, parameter in group:
            if module is last:
                continue
            ratio = parameter.values.rms / middle
            if ratio >= OUTLIER_RATIO or ratio <= 1 / OUTLIER_RATIO:
                found.append(_outlier_finding(view, module, parameter, ratio, middle))
    return found


def _outlier_finding(
    view: RecordView, module: ModuleRecord, parameter: ParameterRecord, ratio: float, middle: float
) -> Finding:
    trained = view.is_trained(parameter)
    name = f"{module.name}.{parameter.name}"
    return Finding(
        "outlier-weights",
        "warning",
        module.name,
        f"the rms of `{name}` is {format_short(ratio)} times that of the same weight in other blocks",
        {"ratio": ratio, "rms": parameter.values.rms, "median of other blocks": middle},
        f"Its rms is {format_short(parameter.values.rms)}; in the other blocks the median is {format_short(middle)}. "
        + (
            "Training has changed this weight differently."
            if trained
            else "It was initialized differently, or loaded from a checkpoint that does not match."
        ),
        "check the learning rate of its parameter group and compare its gradient with the other blocks: lower the "
        "learning rate or clip gradients"
        if trained
        else f"initialize it like the others, with rms {format_short(middle)}; if it was loaded, check that the "
        f"checkpoint fits the model",
    )
