"""Initial weights and biases of recurrent layers."""

import math
from collections.abc import Iterator

from normscope.diagnostics.findings.biases import LARGE_BIAS
from normscope.diagnostics.findings.finding import Finding, FindingKind, RecordView, check
from normscope.diagnostics.findings.identical_units import identical_finding
from normscope.diagnostics.record import ModuleRecord

RECURRENT_GAIN = FindingKind("""
exploding-gradients: `{weight}` of {module} multiplies the state by {gain} in every step
why: Recurrent weights need a gain of about 1 (sqrt(state size) times their rms), since it is applied once per time
step. {effect}
fix: initialize it with nn.init.orthogonal_(weight), each gate on its own, or keep PyTorch's default
""")

RECURRENT_EFFECT = "After 20 steps, state and gradient have grown or are saturated."

GATE_EFFECT = "The gates are saturated after a few steps, and let no gradient through."

CLOSED_GATE = FindingKind("""
abnormal-bias: a bias of {module} goes from {smallest} to {largest}
why: `{bias}` alone decides a gate or a unit: sigmoid(10) is 0.99995, so it is always open or closed, and almost no
gradient passes through it.
fix: initialize it with nn.init.zeros_(bias); for a forget gate that remembers at first, 1 is enough
""")

RECURRENT = frozenset({"RNN", "LSTM", "GRU", "RNNCell", "LSTMCell", "GRUCell"})

LARGEST_RECURRENT_GAIN = 3.0
"""Orthogonal and identity matrices have 1, PyTorch's default 0.58, N(0, 1) sqrt(size). With a ReLU, 3 / sqrt(2) = 2.1
per step, 3e6 over 20 steps."""


def _recurrent(view: RecordView, module: ModuleRecord) -> Iterator[Finding]:
    """Matrices that recurrent layers of torch apply to their state, once per step."""
    for weight in module.parameters if module.kind in RECURRENT else ():
        start = view.at_start(weight)
        values = start or weight.values
        if weight.name.startswith("weight_ih") and values.min == values.max:
            yield identical_finding(module, weight.shape[0], "unit")
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
        start = view.at_start(bias)
        if bias.name.startswith("bias") and bias.requires_grad and start is not None and start.abs_max >= LARGE_BIAS:
            evidence = {"bias": bias.name, "smallest": start.min, "largest": start.max}
            yield CLOSED_GATE.found_in(module, evidence)
            return


@check("numeric")
def check_recurrent_layers(view: RecordView) -> Iterator[Finding]:
    for module in view.ran:
        yield from _recurrent(view, module)
        yield from _gates(view, module)
