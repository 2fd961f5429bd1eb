"""How weights start: gains off their theory, weights off those of the other blocks, units that are all one."""

import math
from collections import defaultdict

from normscope.diagnostics.findings.base import Finding
from normscope.diagnostics.findings.record_view import (
    View,
    bias_of,
    called,
    fan_in,
    is_grouped,
    linear_weight,
    median,
    parent,
    role,
    short,
)
from normscope.diagnostics.record import ModuleRecord, ParameterRecord

LARGEST_GAIN = 5 * 5 / 3
"""Five times the largest gain that theory asks for: 5/3, for tanh (ReLU: sqrt(2)). Weights of N(0, 1) pass it from a
width of 70 on. Trained weights of that width would have to be of size 1, and are of 0.02 to 0.3."""

ALIGNED = 10.0
"""Measured gain over predicted, or half of sqrt(fan_in) if that is more. What weights do not know of their input scales
by sqrt(fan_in) rms(w); trained ones are aligned with it and come to 3 to 5. No matrix can do more than sqrt(fan_in)."""

LEAST_UNITS = 16
"""Outputs over which the measured gain is taken: over n it is known to within 1 / sqrt(2 n), 18%."""

OFF_CENTRE = 0.5
"""The mean of a weight over its rms. Random ones have 1 / sqrt(numbers), those from 0 to 1 sqrt(3) / 2 = 0.87."""

LEAST_NUMBERS = 256
"""Of fewer numbers the mean may be far off by chance or by training."""

ODD = 10.0
"""How far a weight's size is from the middle of its like in other blocks. Starts that depend on depth differ by
sqrt(depth), and training by two or three."""

LEAST_PEERS = 3


def weight_starts(view: View) -> list[Finding]:
    found = [*_odd_ones(view)]
    for module in view.ran:
        weight = linear_weight(module)
        if weight is not None and weight.alias_of is None and weight.requires_grad:  # what is frozen is so by design
            found += _alike(module, weight) or _off_centre(view, module, weight) or _gain(view, module, weight)
        elif weight is None:
            found += _alike_rows(module)
    return found


def _alike(module: ModuleRecord, weight: ParameterRecord) -> list[Finding]:
    constant = weight.values.min == weight.values.max != 0 and weight.shape[0] > 1
    if is_grouped(module, weight) or not (weight.identical_rows or constant):
        return []
    return [_alike_finding(module, weight.shape[0], "units")]


def _alike_rows(module: ModuleRecord) -> list[Finding]:
    """Of a table of vectors: a matrix by the name of weight that multiplies nothing."""
    for parameter in module.parameters:
        if (
            parameter.name == "weight"
            and len(parameter.shape) == 2
            and parameter.identical_rows
            and parameter.requires_grad
        ):
            return [_alike_finding(module, parameter.shape[0], "rows")]
    return []


def _alike_finding(module: ModuleRecord, count: int, what: str) -> Finding:
    return Finding(
        "units-alike",
        "error",
        module.name,
        f"all {count} {what} of {called(module.name)} have the same weights",
        {what: count},
        f"They all give the same number, so the layer is one {what[:-1]} wide. If what reads them treats them alike "
        f"too, their gradients are the same, and they can never differ.",
        f"draw the weight of {called(module.name)} at random: nn.init.kaiming_normal_(weight)",
    )


def _off_centre(view: View, module: ModuleRecord, weight: ParameterRecord) -> list[Finding]:
    values = weight.values
    if values.count < LEAST_NUMBERS or is_grouped(module, weight) or values.rms == 0 or view.has_moved(weight):
        return []
    off = abs(values.mean) / values.rms
    if off < OFF_CENTRE:
        return []
    measured = measured_gain(module, weight)
    figures: dict[str, float | str] = {
        "mean / rms": off,
        "mean": values.mean,
        "predicted gain": weight.predicted_gain or 0.0,
    }
    if measured is not None:
        figures["measured gain"] = measured
    return [
        Finding(
            "weights-off-centre",
            "warning",
            module.name,
            f"the weights of {called(module.name)} average {short(values.mean)} at an rms of {short(values.rms)}",
            figures,
            "All units share the mean, so they all give nearly the same number: the sum of the input. It drowns what "
            "they could tell apart, and grows with the width.",
            "draw the weight around zero: nn.init.kaiming_normal_(weight), or subtract its mean (torch.rand is from 0 "
            "to 1; torch.randn is around 0)",
        )
    ]


def measured_gain(module: ModuleRecord, weight: ParameterRecord) -> float | None:
    """By how much the layer scaled its input, its bias left out; None if that cannot be told."""
    entering, output = module.input, module.output
    if entering is None or output is None or entering.rms == 0 or not output.count:
        return None
    bias = bias_of(module)
    square = output.rms * output.rms - (bias.values.rms * bias.values.rms if bias is not None else 0.0)
    return math.sqrt(square) / entering.rms if square > 0 else None


def is_before_norm(view: View, module: ModuleRecord) -> bool:
    """Whether norms alone read its output: there no size matters."""
    readers = view.readers.get(module.name, [])
    return bool(readers) and all(reader.norm is not None for reader in readers)


def _gain(view: View, module: ModuleRecord, weight: ParameterRecord) -> list[Finding]:
    predicted, measured = weight.predicted_gain or 0.0, measured_gain(module, weight)
    if predicted >= LARGEST_GAIN and not is_before_norm(view, module):  # once it has moved, `weights-grown` tells of it
        return [] if view.has_moved(weight) else [_gain_finding(view, module, weight, predicted, measured)]
    if measured is None or predicted == 0 or weight.shape[0] < LEAST_UNITS or is_grouped(module, weight):
        return []
    # A weight that starts at zero is aligned as far as it can be after a step, but small.
    if measured >= LARGEST_GAIN and measured / predicted >= max(ALIGNED, math.sqrt(fan_in(weight)) / 2):
        return [_gain_finding(view, module, weight, predicted, measured)]
    return []


def _gain_finding(
    view: View, module: ModuleRecord, weight: ParameterRecord, predicted: float, measured: float | None
) -> Finding:
    size = weight.values.rms
    if predicted >= LARGEST_GAIN:
        title = (
            f"the weights of {called(module.name)} scale a random input by {short(predicted)}; theory asks for 1 to 1.7"
        )
        why = (
            f"Each of its units sums {fan_in(weight):.0f} numbers with weights of size {short(size)}, so the output is "
        )
        why += f"{short(predicted)} times larger than the input, and saturates or drowns what comes after it."
        fix = f"start the weight at {short(1 / math.sqrt(fan_in(weight)))}, 1 / sqrt(fan in), instead of {short(size)}"
        if view.steps_made is None:
            fix += "; if steps have brought it there, lower the learning rate, clip gradients or warm up"
    else:
        title = (
            f"{called(module.name)} scales its input by {short(measured or 0.0)}; its weights say {short(predicted)}"
        )
        why = (
            "Weights scale what is random to them by sqrt(fan in) times their size. A layer that does much more has a "
        )
        why += "factor besides its weights, or an input that is nearly the same in all places."
        fix = "look at its forward for a scale that is applied twice, and at whether its input has a large mean"
    figures: dict[str, float | str] = {"predicted gain": predicted, "rms of weights": size}
    if measured is not None:
        figures |= {"measured gain": measured, "measured / predicted": measured / predicted if predicted else 0.0}
    return Finding("gain-off-theory", "warning", module.name, title, figures, why, fix)


def _odd_ones(view: View) -> list[Finding]:
    """Matrices that are far from the middle of their like: same role in another block, same shape.

    Of layers that follow each other in one module the last is left out: it may be what the model ends with, and a last
    layer often starts at zero.
    """
    peers: dict[tuple[str, tuple[int, ...]], list[tuple[ModuleRecord, ParameterRecord]]] = defaultdict(list)
    for module, parameter in view.matrices:
        if "*" in role(module.name) and parameter.values.rms > 0:
            peers[role(f"{module.name}.{parameter.name}"), parameter.shape].append((module, parameter))
    found = []
    for group in peers.values():
        if len(group) <= LEAST_PEERS:
            continue
        middle = median([parameter.values.rms for _, parameter in group])
        siblings = len({parent(module.name) for module, _ in group}) == 1
        last = (
            max((module for module, _ in group), key=lambda module: view.execution_order(module.name))
            if siblings
            else None
        )
        for module, parameter in group:
            if module is last:
                continue
            ratio = parameter.values.rms / middle
            if ratio >= ODD or ratio <= 1 / ODD:
                found.append(_odd_finding(view, module, parameter, ratio, middle))
    return found


def _odd_finding(view: View, module: ModuleRecord, parameter: ParameterRecord, ratio: float, middle: float) -> Finding:
    moved = view.has_moved(parameter)
    name = f"{module.name}.{parameter.name}"
    return Finding(
        "odd-weights",
        "warning",
        module.name,
        f"`{name}` is {short(ratio)} times the size of the same weight in other blocks",
        {"ratio": ratio, "rms": parameter.values.rms, "middle of its like": middle},
        f"Its numbers have a size of {short(parameter.values.rms)}, and those of its like in the other blocks one of "
        f"{short(middle)}. "
        + ("" if moved else "It was started in another way, or ")
        + ("S" if moved else "s")
        + "omething happened to it alone.",
        "look at the rate of its parameter group, and at how large its gradient is beside those of its like: lower the "
        "one, clip the other"
        if moved
        else f"start it like the others, at {short(middle)}; if it was loaded, look whether the checkpoint fits the "
        f"model",
    )
