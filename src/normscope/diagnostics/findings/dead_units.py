"""Units that contribute nothing: always zero, or always saturated."""

from normscope.diagnostics.findings.base import Finding
from normscope.diagnostics.findings.record_view import RecordView, has_zero_weights, module_ref, zero_weights_fix
from normscope.diagnostics.record import ModuleRecord, UnitStats
from normscope.render.formatting import format_percent

MIN_SAMPLES = 256
"""A unit counts as dead only after this many zeros. A unit that is active for 2% of inputs, as in sparse trained
networks, is zero for 256 inputs with a probability of 0.98^256 = 0.6%. If all units of a layer are zero, samples of all
units count."""

DEAD_NOTE, DEAD_WARNING = 0.1, 0.5
"""Some dead units are normal after training (Voita et al. 2023 find layers of OPT where most are dead). At half of a
layer the model has lost half of its width."""

SATURATED_UNITS, SATURATED_VALUES = 0.5, 0.9
"""Half of the units saturated for every input, or nine tenths of all values. Unit-variance inputs saturate 2% of a
tanh's values; there, at most 4% of the slope is left (Glorot & Bengio 2010)."""

_ZERO_SLOPE_AT_ZERO = {
    "relu",
    "relu6",
    "relu2",
    "threshold",
    "hardswish",
    "reglu",
    "relusquaredactivation",
    "relusquared",
}
"""Activations that can be zero with zero slope: such a unit gets no gradient."""


def check_units(view: RecordView) -> list[Finding]:
    found = []
    for module in view.ran:
        if module.units is not None and module.units.count:
            finding = _dead(view, module) or _saturated(view, module)
            if finding is not None:
                found.append(finding)
    return found


def _dead(view: RecordView, module: ModuleRecord) -> Finding | None:
    units = module.units
    assert units is not None
    samples = units.samples * units.count if units.dead == units.count else units.samples
    if module.kind.lower() not in _ZERO_SLOPE_AT_ZERO or samples < MIN_SAMPLES:
        return None
    fraction = units.dead / units.count
    if fraction < DEAD_NOTE:
        return None
    zero = [name for name in module.fed_by if name in view.modules and has_zero_weights(view.modules[name])]
    severity = "error" if units.dead == units.count else "warning" if fraction >= DEAD_WARNING else "note"
    return Finding(
        "dead-units",
        severity,
        module.name,
        f"{units.dead} of {units.count} units of {module_ref(module.name)}{_call_site(units)} are dead: zero for all "
        f"{units.samples} inputs",
        {"fraction": fraction, "dead": units.dead, "units": units.count, "inputs": units.samples},
        "A unit that is always zero passes nothing on and gets no gradient, so it cannot recover."
        + (" Here every unit is dead, so no earlier layer can learn." if severity == "error" else ""),
        zero_weights_fix(zero[0])
        if zero
        else "lower the learning rate or add warmup, initialize biases to zero, check for a large negative mean before "
        "the activation, or use one with a negative slope: nn.LeakyReLU(0.01), nn.GELU()",
    )


def _call_site(units: UnitStats) -> str:
    """The call that the statistics are from, if the activation is used in several places."""
    return f" (after `{units.input_module}`)" if units.input_module else ""


def _saturated(view: RecordView, module: ModuleRecord) -> Finding | None:
    units = module.units
    assert units is not None
    if units.saturated is None or module.saturated is None or units.samples < MIN_SAMPLES:
        return None
    # An output that no module reads is a gate or the model's output: once trained, these saturate by design.
    if not view.readers.get(module.name):
        return None
    fraction = units.saturated / units.count
    if fraction < SATURATED_UNITS and module.saturated < SATURATED_VALUES:
        return None
    evidence: dict[str, float | str] = {"units": fraction, "values": module.saturated}
    if module.input is not None:
        evidence["input rms"] = module.input.rms
    return Finding(
        "saturated-units",
        "warning",
        module.name,
        f"{format_percent(module.saturated)} of the values of {module_ref(module.name)} are saturated; "
        f"{format_percent(fraction)} of its units{_call_site(units)} always are",
        evidence,
        "A saturated unit has at most 4% of the maximum slope, so almost no gradient passes through.",
        "reduce the scale of its input: normalize the model's input to unit variance, initialize the layer before it "
        "with nn.init.xavier_normal_(weight), or add a norm before it",
    )
