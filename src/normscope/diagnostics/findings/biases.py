"""Initial biases of layers, and weights of norms, that drown or wipe out the signal."""

from collections.abc import Iterator

from normscope.diagnostics.findings.finding import Finding, FindingKind, RecordView, check
from normscope.diagnostics.record import ModuleRecord

LARGE_BIAS_FOUND = FindingKind("""
abnormal-bias: the bias of {module} has an rms of {bias rms}; what it is added to has {signal rms}
why: The bias decides alone: the output hardly depends on the input, and the activation after it is always on, always
off, or saturated.
fix: initialize it with nn.init.zeros_(bias)
""")

NORM_WEIGHT = FindingKind("""
abnormal-gain: the weights of {module} are all {weight}; norms start with 1
why: The norm's output has an rms of {weight}, whatever its input, so that layers after it get values far from 1.
fix: initialize it with nn.init.ones_(weight), or zeros for the last norm of a residual branch
""")

SMALL_NORM_WEIGHT = 0.01
"""Weight of a norm; residual branches that start small use 0 or 0.1, layer scales (which are no norms) less."""

LARGE_BIAS = 10.0
"""Rms of a bias, and its ratio to the rest of the layer's output. Biases for rare classes go down to -5, those of
forget gates up to 3."""


def _norm_weight(view: RecordView, module: ModuleRecord) -> Iterator[Finding]:
    """Weights of norms that all start with one extreme value. (Zero is the start of many residual branches.)"""
    for weight in module.parameters if module.norm is not None else ():
        start = view.at_start(weight)
        if weight.name != "weight" or start is None or start.min != start.max or not weight.requires_grad:
            continue
        if start.max >= LARGE_BIAS or 0 < start.max <= SMALL_NORM_WEIGHT:
            yield NORM_WEIGHT.found_in(module, {"weight": start.max})


def _large_bias(view: RecordView, module: ModuleRecord) -> Iterator[Finding]:
    """Biases of hidden layers that are far larger than what the layer makes of its input."""
    bias, weight = module.bias, module.linear_weight
    start = None if bias is None else view.at_start(bias)
    readers = view.readers.get(module.name, [])
    if bias is None or weight is None or start is None or not bias.requires_grad or not readers:
        return
    if module.input is None or not weight.predicted_gain or view.is_before_norm(module):
        return
    if any(reader.units is not None and 2 * reader.units.dead >= reader.units.count for reader in readers):
        return  # reported as dead units
    signal = module.input.rms * weight.predicted_gain
    if start.rms >= LARGE_BIAS and start.rms >= LARGE_BIAS * signal:
        evidence = {"bias rms": start.rms, "signal rms": signal, "bias mean": start.mean}
        yield LARGE_BIAS_FOUND.found_in(module, evidence)


@check("numeric")
def check_biases(view: RecordView) -> Iterator[Finding]:
    for module in view.ran:
        yield from _large_bias(view, module)
        yield from _norm_weight(view, module)
