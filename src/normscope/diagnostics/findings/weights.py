"""The scale of weights: bad initializations, and weights that training has made far larger than any initialization."""

import itertools
import math
from collections.abc import Iterator

from normscope.diagnostics.findings.finding import Finding, FindingKind, RecordView, check
from normscope.diagnostics.findings.identical_units import identical_rows, identical_units
from normscope.diagnostics.module_names import module_ref
from normscope.diagnostics.record import ModuleRecord, ParameterRecord

UNCENTERED_WEIGHTS = FindingKind("""
uncentered-weights: the weights of {module} are not centered: mean {mean}, rms {rms}
why: All units share the mean, so they all output nearly the same value, the scaled sum of the input. It dominates the
differences between units and grows with the width.
fix: initialize the weight with zero mean, e.g. nn.init.kaiming_normal_(weight) (torch.rand samples from 0 to 1;
torch.randn has zero mean)
""")

LARGE_GAIN = FindingKind("""
abnormal-gain: the weights of {module} have a gain of {predicted gain}; initializations use 1 to 1.7
why: With a fan-in of {fan_in:.0f} and a weight rms of {weight rms}, the output is {predicted gain} times larger than
the input. Later layers saturate, or contribute almost nothing.
fix: initialize with std {std}, 1 / sqrt(fan_in), instead of {weight rms}{unless}
""")

UNEXPLAINED_GAIN = FindingKind("""
abnormal-gain: {module} scales its input by {measured gain}; its weights predict {predicted gain}
why: Weights scale an uncorrelated input by sqrt(fan_in) times their rms. A layer that does much more applies an extra
factor, or its input is nearly constant.
fix: check its forward for a scale that is applied twice, and its input for a large mean
""")

EXPLODED_WEIGHTS = FindingKind("""
exploded-weights: {after} the weights of {layer} have a gain of {predicted gain}; initializations use at most
1.7{others}
why: Trained weights normally reach a gain of 1 to 3. A learning rate that is too high produces such weights: each step
increases them further, and the learned values are lost.
fix: lower the learning rate, clip gradients (nn.utils.clip_grad_norm_) and add warmup; restart from an earlier
checkpoint
""")

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


@check("numeric")
def check_initial_weights(view: RecordView) -> Iterator[Finding]:
    for module in view.ran:
        weight = module.linear_weight
        if weight is None:
            yield from identical_rows(module)
        elif weight.alias_of is None and weight.requires_grad:  # frozen weights are intended
            checks = (identical_units, _uncentered, _gain)
            yield from itertools.islice((found for one in checks if (found := one(view, module, weight))), 1)


def _uncentered(view: RecordView, module: ModuleRecord, weight: ParameterRecord) -> Finding | None:
    start = view.at_start(weight)
    values = start or weight.values
    if values.count < MIN_ELEMENTS or module.is_grouped_conv or values.rms == 0:
        return None
    if (start is None and view.is_trained(weight)) or _stays_non_negative(weight):
        return None
    off_center = abs(values.mean) / values.rms
    if off_center < OFF_CENTER:
        return None
    evidence = {
        "mean / rms": off_center,
        "mean": values.mean,
        "predicted gain": weight.predicted_gain or 0.0,
        "measured gain": _measured_gain(module),
    }
    return UNCENTERED_WEIGHTS.found_in(module, evidence, rms=values.rms)


def _stays_non_negative(weight: ParameterRecord) -> bool:
    """Whether something keeps the weight from becoming negative: training made some elements exactly zero."""
    start = weight.initial
    return start is not None and weight.values.min == 0 and weight.values.zeros > start.zeros


def _measured_gain(module: ModuleRecord) -> float | None:
    """Output rms, without the bias, over input rms; None if unknown."""
    inputs, output = module.input, module.output
    if inputs is None or output is None or inputs.rms == 0 or not output.count:
        return None
    bias_rms = 0.0 if module.bias is None else module.bias.values.rms
    square = output.rms * output.rms - bias_rms * bias_rms
    return math.sqrt(square) / inputs.rms if square > 0 else None


def _gain(view: RecordView, module: ModuleRecord, weight: ParameterRecord) -> Finding | None:
    predicted, measured, rms = weight.predicted_gain or 0.0, _measured_gain(module), weight.values.rms
    start = view.at_start(weight)
    if start is not None and rms > 0 and start.rms / rms * predicted >= LARGEST_GAIN:  # it was so from the start
        predicted, rms = start.rms / rms * predicted, start.rms
    evidence = {"predicted gain": predicted, "weight rms": rms}
    if measured is not None:
        evidence |= {"measured gain": measured, "measured / predicted": measured / predicted if predicted else 0.0}
    if module.name in view.record.read_by_sine:  # its weights are frequencies
        return None
    if predicted >= LARGEST_GAIN and not view.is_before_norm(module):
        if view.is_trained(weight) and (start is None or rms != start.rms):  # check_exploded_weights reports it
            return None
        unless = ""
        if view.total_steps is None:
            unless = "; if training made the weights this large, lower the learning rate, clip gradients or add warmup"
        std = 1 / math.sqrt(weight.fan_in)
        return LARGE_GAIN.found_in(module, evidence, fan_in=weight.fan_in, std=std, unless=unless)
    if measured is None or predicted == 0 or weight.shape[0] < MIN_UNITS or module.is_grouped_conv:
        return None
    # A weight that starts at zero is fully aligned with its input after one step, but still small.
    if measured >= LARGEST_GAIN and measured / predicted >= max(MAX_GAIN_RATIO, math.sqrt(weight.fan_in) / 2):
        return UNEXPLAINED_GAIN.found_in(module, evidence)
    return None


def _has_changed(view: RecordView, weight: ParameterRecord) -> bool:
    """Whether training, and not the initialization, made the weight as large as it is."""
    start = view.at_start(weight)
    return view.is_trained(weight) and (start is None or start.rms < weight.values.rms / 2)


@check("numeric")
def check_exploded_weights(view: RecordView) -> Iterator[Finding]:
    """Find excessive gains in trained weights. If most weights have one, report the model once."""
    trained = [(m, w) for m, w in view.linear if w.alias_of is None and w.requires_grad and _has_changed(view, w)]
    large = [(m, w) for m, w in trained if (w.predicted_gain or 0.0) >= LARGEST_GAIN and not view.is_before_norm(m)]
    shared = len(large) > 1 and 2 * len(large) >= len(trained)
    after = f"after {view.total_steps} steps" if view.total_steps else "after training"
    for module, weight in [max(large, key=lambda found: found[1].predicted_gain or 0.0)] if shared else large:
        count, gain = len(large) if shared else 1, weight.predicted_gain or 0.0
        others = f"; {count - 1} other layers have exploded too" if shared else ""
        evidence = {"predicted gain": gain, "weight rms": weight.values.rms, "weights": count}
        place = "" if shared else module.name
        yield EXPLODED_WEIGHTS.found_in(place, evidence, after=after, layer=module_ref(module.name), others=others)
