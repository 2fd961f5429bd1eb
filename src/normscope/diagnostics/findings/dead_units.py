"""Units that do nothing: zero for all inputs, or stuck at the flat end of their function."""

from normscope.diagnostics.findings.base import Finding
from normscope.diagnostics.findings.record_view import View, blank_fix, called, is_blank, percent
from normscope.diagnostics.record import ModuleRecord, UnitStats

LEAST_SEEN = 256
"""So many values of a unit have to be zero before it counts as dead. One that wakes for 2% of inputs, as in sparse
trained networks, sleeps through 256 with a chance of 0.98^256 = 0.6%. Where all units of a layer are zero, the values
of all of them count."""

DEAD_NOTED, DEAD_SHARE = 0.1, 0.5
"""Some dead units are usual after training (Voita et al. 2023 find layers of OPT with most of them dead); at half of a
layer the model is half as wide as it was made."""

STUCK_UNITS, STUCK_VALUES = 0.5, 0.9
"""Half of the units at their flat ends for every input, or nine tenths of all values. Inputs of unit variance put 2% of
a tanh's values there, and a slope of at most 4% is left (Glorot, Bengio 2010)."""

_FLAT_AT_ZERO = {"relu", "relu6", "relu2", "threshold", "hardswish", "reglu", "relusquaredactivation", "relusquared"}
"""Functions that are zero with a slope of zero: a unit there gets no gradient."""


def idle_units(view: View) -> list[Finding]:
    found = []
    for module in view.ran:
        if module.units is not None and module.units.count:
            finding = _dead(view, module) or _saturated(view, module)
            if finding is not None:
                found.append(finding)
    return found


def _dead(view: View, module: ModuleRecord) -> Finding | None:
    units = module.units
    assert units is not None
    seen = units.samples * units.count if units.dead == units.count else units.samples
    if module.kind.lower() not in _FLAT_AT_ZERO or seen < LEAST_SEEN:
        return None
    share = units.dead / units.count
    if share < DEAD_NOTED:
        return None
    blank = [name for name in module.fed_by if name in view.modules and is_blank(view.modules[name])]
    severity = "error" if units.dead == units.count else "warning" if share >= DEAD_SHARE else "note"
    return Finding(
        "dead-units",
        severity,
        module.name,
        f"{units.dead} of {units.count} units of {called(module.name)}{_place(units)} were zero for all {units.samples} "
        f"values",
        {"share": share, "dead": units.dead, "units": units.count, "values seen": units.samples},
        "A unit that is always zero passes nothing on and gets no gradient, so it does not come back."
        + (" Here all are, and nothing before it can learn." if severity == "error" else ""),
        blank_fix(blank[0])
        if blank
        else "lower the learning rate or warm it up, start biases at zero, look for a large negative mean before it, "
        "or use an activation with a slope below zero: nn.LeakyReLU(0.01), nn.GELU()",
    )


def _place(units: UnitStats) -> str:
    """Which of the places it is that the activation stands at, if it stands at several."""
    return f" (where it reads `{units.input_module}`)" if units.input_module else ""


def _saturated(view: View, module: ModuleRecord) -> Finding | None:
    units = module.units
    assert units is not None
    if units.saturated is None or module.saturated is None or units.samples < LEAST_SEEN:
        return None
    # What no module reads is a gate, or the model's output: these are at their ends by design once they are trained.
    if not view.readers.get(module.name):
        return None
    share = units.saturated / units.count
    if share < STUCK_UNITS and module.saturated < STUCK_VALUES:
        return None
    figures: dict[str, float | str] = {"units": share, "values": module.saturated}
    if module.input is not None:
        figures["input rms"] = module.input.rms
    return Finding(
        "saturated-units",
        "warning",
        module.name,
        f"{percent(module.saturated)} of the values of {called(module.name)} are at its flat ends, and "
        f"{percent(share)} of its units{_place(units)} always",
        figures,
        "At the flat ends the slope is 4% of the steepest or less, so hardly any gradient comes through.",
        "make its input smaller: scale the inputs of the model to unit variance, start the layer before it with "
        "nn.init.xavier_normal_(weight), or put a norm before it",
    )
