"""The scale of weights: bad initializations, and weights that training has made far larger than any initialization."""

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator
from statistics import median_high

from normscope.diagnostics.findings.finding import FEW_STEPS, Finding, FindingKind, RecordView, check
from normscope.diagnostics.module_names import module_ref, name_pattern, parent_name
from normscope.diagnostics.record import ModuleRecord, ParameterRecord
from normscope.diagnostics.stats.tensors import TensorStats

IDENTICAL_UNITS = FindingKind("""
identical-units: all {count} {thing}s of {module} have the same weights
why: All {thing}s produce the same output, so the layer is effectively one {thing} wide. If the next layer treats them
alike, they also get the same gradient and stay identical.
fix: initialize the weight of {module} at random: nn.init.kaiming_normal_(weight)
""")
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
OUTLIER_INITIALIZATION = FindingKind("""
outlier-weights: the rms of `{weight}` is {ratio} times that of the same weight in other blocks
why: Its rms is {rms}; in the other blocks the median is {median of other blocks}. It was initialized differently, or
loaded from a checkpoint that does not match.
fix: initialize it like the others, with rms {median of other blocks}; if it was loaded, check that the checkpoint fits
the model
""")
OUTLIER_AFTER_TRAINING = FindingKind("""
outlier-weights: the rms of `{weight}` is {ratio} times that of the same weight in other blocks
why: Its rms is {rms}; in the other blocks the median is {median of other blocks}. Training has changed this weight
differently.
fix: check the learning rate of its parameter group and compare its gradient with the other blocks: lower the learning
rate or clip gradients
""")
EXPLODED_WEIGHTS = FindingKind("""
exploded-weights: {after} the weights of {layer} have a gain of {predicted gain}; initializations use at most
1.7{others}
why: Trained weights normally reach a gain of 1 to 3. A learning rate that is too high produces such weights: each step
increases them further, and the learned values are lost.
fix: lower the learning rate, clip gradients (nn.utils.clip_grad_norm_) and add warmup; restart from an earlier
checkpoint
""")

RECURRENT_GAIN = FindingKind("""
exploding-gradients: `{weight}` of {module} multiplies the state by {gain} in every step
why: Recurrent weights need a gain of about 1 (sqrt(state size) times their rms), since it is applied once per time
step. {effect}
fix: initialize it with nn.init.orthogonal_(weight), each gate on its own, or keep PyTorch's default
""")
RECURRENT_EFFECT = "After 20 steps, state and gradient have grown or are saturated."
GATE_EFFECT = "The gates are saturated after a few steps, and let no gradient through."
LARGE_BIAS_FOUND = FindingKind("""
abnormal-bias: the bias of {module} has an rms of {bias rms}; what it is added to has {signal rms}
why: The bias decides alone: the output hardly depends on the input, and the activation after it is always on, always
off, or saturated.
fix: initialize it with nn.init.zeros_(bias)
""")

CLOSED_GATE = FindingKind("""
abnormal-bias: a bias of {module} goes from {smallest} to {largest}
why: `{bias}` alone decides a gate or a unit: sigmoid(10) is 0.99995, so it is always open or closed, and almost no
gradient passes through it.
fix: initialize it with nn.init.zeros_(bias); for a forget gate that remembers at first, 1 is enough
""")
NORM_WEIGHT = FindingKind("""
abnormal-gain: the weights of {module} are all {weight}; norms start with 1
why: The norm's output has an rms of {weight}, whatever its input, so that layers after it get values far from 1.
fix: initialize it with nn.init.ones_(weight), or zeros for the last norm of a residual branch
""")

RECURRENT = frozenset({"RNN", "LSTM", "GRU", "RNNCell", "LSTMCell", "GRUCell"})

LARGEST_RECURRENT_GAIN = 3.0
"""Orthogonal and identity matrices have 1, PyTorch's default 0.58, N(0, 1) sqrt(size). With a ReLU, 3 / sqrt(2) = 2.1
per step, 3e6 over 20 steps."""

SMALL_NORM_WEIGHT = 0.01
"""Weight of a norm; residual branches that start small use 0 or 0.1, layer scales (which are no norms) less."""

LARGE_BIAS = 10.0
"""Rms of a bias, and its ratio to the rest of the layer's output. Biases for rare classes go down to -5, those of
forget gates up to 3."""

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

INITIAL_RATIO, LARGE_LAYER = 5.0, 2.5
"""Before training, the same weight has the same scale in all blocks: five times more, with a gain that no
initialization asks for, is a slip."""

MIN_PEERS = 3


@check("numeric")
def check_initial_weights(view: RecordView) -> Iterator[Finding]:
    yield from _outliers(view)
    for module in view.ran:
        yield from _recurrent(view, module)
        yield from _large_bias(view, module)
        yield from _gates(view, module)
        yield from _norm_weight(view, module)
        weight = module.linear_weight
        if weight is None:
            yield from _identical_rows(module)
        elif weight.alias_of is None and weight.requires_grad:  # frozen weights are intended
            checks = (_identical_units, _uncentered, _gain)
            yield from itertools.islice((found for one in checks if (found := one(view, module, weight))), 1)


def _at_start(view: RecordView, weight: ParameterRecord) -> TensorStats | None:
    """The values when the x-ray began, if training had hardly begun by then."""
    return weight.initial if view.steps_before_xray <= FEW_STEPS else None


def _identical_units(view: RecordView, module: ModuleRecord, weight: ParameterRecord) -> Finding | None:
    constant = weight.values.min == weight.values.max != 0 and weight.shape[0] > 1
    identical = weight.identical_rows or (weight.initial_identical_rows and _at_start(view, weight) is not None)
    if module.is_grouped_conv or not (identical or constant):
        return None
    return _identical(module, weight.shape[0], "unit")


def _identical_rows(module: ModuleRecord) -> Iterator[Finding]:
    """Identical rows of an embedding: a matrix called "weight" that is not a linear layer's."""
    for parameter in module.parameters:
        is_table = parameter.name == "weight" and len(parameter.shape) == 2 and parameter.requires_grad
        if is_table and parameter.identical_rows:
            yield _identical(module, parameter.shape[0], "row")


def _identical(module: ModuleRecord, count: int, thing: str) -> Finding:
    return IDENTICAL_UNITS.found_in(module, {f"{thing}s": count}, "error", count=count, thing=thing)


def _uncentered(view: RecordView, module: ModuleRecord, weight: ParameterRecord) -> Finding | None:
    start = _at_start(view, weight)
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


def _is_before_norm(view: RecordView, module: ModuleRecord) -> bool:
    """Whether only norms read its output, so that its scale does not matter."""
    readers = view.readers.get(module.name, [])
    return bool(readers) and all(reader.norm is not None for reader in readers)


def _gain(view: RecordView, module: ModuleRecord, weight: ParameterRecord) -> Finding | None:
    predicted, measured, rms = weight.predicted_gain or 0.0, _measured_gain(module), weight.values.rms
    start = _at_start(view, weight)
    if start is not None and rms > 0 and start.rms / rms * predicted >= LARGEST_GAIN:  # it was so from the start
        predicted, rms = start.rms / rms * predicted, start.rms
    evidence = {"predicted gain": predicted, "weight rms": rms}
    if measured is not None:
        evidence |= {"measured gain": measured, "measured / predicted": measured / predicted if predicted else 0.0}
    if module.name in view.record.read_by_sine:  # its weights are frequencies
        return None
    if predicted >= LARGEST_GAIN and not _is_before_norm(view, module):
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


def _outliers(view: RecordView) -> Iterator[Finding]:
    """Find matrices whose rms is far from the median of the same weight in other blocks.

    In a sequence of sibling layers the last one is skipped: it may be the output layer, which often starts at zero.
    """
    peers: dict[tuple[str, tuple[int, ...]], list[tuple[ModuleRecord, ParameterRecord]]] = defaultdict(list)
    for module, weight in view.matrices:
        if "*" in name_pattern(module.name) and weight.values.rms > 0:
            peers[name_pattern(f"{module.name}.{weight.name}"), weight.shape].append((module, weight))
    for group in peers.values():
        if len(group) <= MIN_PEERS:
            continue
        siblings = len({parent_name(module.name) for module, _ in group}) == 1
        last = max((m for m, _ in group), key=lambda module: view.execution_order(module.name)) if siblings else None
        starts = [start.rms for _, weight in group if (start := _at_start(view, weight)) is not None and start.rms > 0]
        now = [weight.values.rms for _, weight in group]
        sizes = starts if len(starts) == len(group) else now
        for (module, weight), first, size in zip(group, sizes, now, strict=True):
            if module is last:
                continue
            gain = (weight.predicted_gain or 0.0) * first / size
            limit = INITIAL_RATIO if starts and gain >= LARGE_LAYER else OUTLIER_RATIO
            is_trained = view.is_trained(weight)
            for own, others, largest, kind in (
                (first, sizes, limit, OUTLIER_AFTER_TRAINING if is_trained and not starts else OUTLIER_INITIALIZATION),
                (size, now, OUTLIER_RATIO, OUTLIER_AFTER_TRAINING if is_trained else OUTLIER_INITIALIZATION),
            ):
                ratio = own / median_high(others)
                if ratio >= largest or ratio <= 1 / OUTLIER_RATIO:
                    evidence = {"ratio": ratio, "rms": own, "median of other blocks": median_high(others)}
                    yield kind.found_in(module, evidence, weight=f"{module.name}.{weight.name}")
                    break


def _has_changed(view: RecordView, weight: ParameterRecord) -> bool:
    """Whether training, and not the initialization, made the weight as large as it is."""
    start = _at_start(view, weight)
    return view.is_trained(weight) and (start is None or start.rms < weight.values.rms / 2)


def _recurrent(view: RecordView, module: ModuleRecord) -> Iterator[Finding]:
    """Matrices that recurrent layers of torch apply to their state, once per step."""
    for weight in module.parameters if module.kind in RECURRENT else ():
        start = _at_start(view, weight)
        values = start or weight.values
        if weight.name.startswith("weight_ih") and values.min == values.max:
            yield _identical(module, weight.shape[0], "unit")
            return
        is_unknown = start is None and view.is_trained(weight)
        if is_unknown or not weight.name.startswith("weight_hh") or len(weight.shape) != 2:
            continue
        gain, is_plain = values.rms * math.sqrt(weight.shape[1]), module.kind.startswith("RNN")
        if gain >= LARGEST_RECURRENT_GAIN and weight.requires_grad:
            evidence = {"gain": gain, "weight rms": values.rms, "state size": weight.shape[1]}
            effect = RECURRENT_EFFECT if is_plain else GATE_EFFECT
            yield RECURRENT_GAIN.found_in(module, evidence, weight=weight.name, effect=effect)
            return


def _gates(view: RecordView, module: ModuleRecord) -> Iterator[Finding]:
    """Biases of recurrent layers that keep a gate open or closed."""
    for bias in module.parameters if module.kind in RECURRENT else ():
        start = _at_start(view, bias)
        if bias.name.startswith("bias") and bias.requires_grad and start is not None and start.abs_max >= LARGE_BIAS:
            evidence = {"bias": bias.name, "smallest": start.min, "largest": start.max}
            yield CLOSED_GATE.found_in(module, evidence)
            return


def _norm_weight(view: RecordView, module: ModuleRecord) -> Iterator[Finding]:
    """Weights of norms that all start with one extreme value. (Zero is the start of many residual branches.)"""
    for weight in module.parameters if module.norm is not None else ():
        start = _at_start(view, weight)
        if weight.name != "weight" or start is None or start.min != start.max or not weight.requires_grad:
            continue
        if start.max >= LARGE_BIAS or 0 < start.max <= SMALL_NORM_WEIGHT:
            yield NORM_WEIGHT.found_in(module, {"weight": start.max})


def _large_bias(view: RecordView, module: ModuleRecord) -> Iterator[Finding]:
    """Biases of hidden layers that are far larger than what the layer makes of its input."""
    bias, weight = module.bias, module.linear_weight
    start = None if bias is None else _at_start(view, bias)
    readers = view.readers.get(module.name, [])
    if bias is None or weight is None or start is None or not bias.requires_grad or not readers:
        return
    if module.input is None or not weight.predicted_gain or _is_before_norm(view, module):
        return
    if any(reader.units is not None and 2 * reader.units.dead >= reader.units.count for reader in readers):
        return  # reported as dead units
    signal = module.input.rms * weight.predicted_gain
    if start.rms >= LARGE_BIAS and start.rms >= LARGE_BIAS * signal:
        evidence = {"bias rms": start.rms, "signal rms": signal, "bias mean": start.mean}
        yield LARGE_BIAS_FOUND.found_in(module, evidence)


@check("numeric")
def check_exploded_weights(view: RecordView) -> Iterator[Finding]:
    """Find excessive gains in trained weights. If most weights have one, report the model once."""
    trained = [(m, w) for m, w in view.linear if w.alias_of is None and w.requires_grad and _has_changed(view, w)]
    large = [(m, w) for m, w in trained if (w.predicted_gain or 0.0) >= LARGEST_GAIN and not _is_before_norm(view, m)]
    shared = len(large) > 1 and 2 * len(large) >= len(trained)
    after = f"after {view.total_steps} steps" if view.total_steps else "after training"
    for module, weight in [max(large, key=lambda found: found[1].predicted_gain or 0.0)] if shared else large:
        count, gain = len(large) if shared else 1, weight.predicted_gain or 0.0
        others = f"; {count - 1} other layers have exploded too" if shared else ""
        evidence = {"predicted gain": gain, "weight rms": weight.values.rms, "weights": count}
        place = "" if shared else module.name
        yield EXPLODED_WEIGHTS.found_in(place, evidence, after=after, layer=module_ref(module.name), others=others)
