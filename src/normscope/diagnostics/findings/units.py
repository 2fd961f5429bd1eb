"""Units that contribute nothing (always zero, or always saturated), and features that dominate all others."""

from collections.abc import Iterator

from normscope.diagnostics.findings.finding import Finding, FindingKind, RecordView, check, zero_weights_fix
from normscope.diagnostics.record import ModuleRecord
from normscope.diagnostics.stats.tensors import UnitStats

DEAD_UNITS = FindingKind("""
dead-units: {dead} of {units} units of {module}{call_site} are dead: zero for all {inputs} inputs
why: A unit that is always zero passes nothing on and gets no gradient, so it cannot recover.{outlook}
fix: {fix}
""")
DEAD_UNITS_FIX = (
    "lower the learning rate or add warmup, initialize biases to zero, check for a large negative mean before the "
    "activation, or use one with a negative slope: nn.LeakyReLU(0.01), nn.GELU()"
)

SATURATED_UNITS = FindingKind("""
saturated-units: {values:%} of the values of {module} are saturated; {units:%} of its units{call_site} always are
why: A saturated unit has at most 4% of the maximum slope, so almost no gradient passes through.
fix: reduce the scale of its input: normalize the model's input to unit variance, initialize the layer before it with
nn.init.xavier_normal_(weight), or add a norm before it
""")

OUTLIER_FEATURES = FindingKind("""
outlier-features: input feature {feature} of {module} is {ratio} times larger than the median feature
why: In int8 with one scale for all features, the rounding error is {int8 error:%} of the median feature's rms.
fix: quantize with per-channel scales, move the scale into the weights (SmoothQuant), or keep feature {feature} in 16
bits
""")

MIN_SAMPLES = 256
"""A unit counts as dead only after this many zeros. A unit that is active for 2% of inputs, as in sparse trained
networks, is zero for 256 inputs with a probability of 0.98^256 = 0.6%. If all units of a layer are zero, samples of all
units count."""

DEAD_NOTE, DEAD_WARNING = 0.1, 0.5
"""Some dead units are normal after training (Voita et al. 2023 find layers of OPT where most are dead). At half of a
layer the model has lost half of its width."""

MAX_SATURATED_UNITS, MAX_SATURATED_VALUES = 0.5, 0.9
"""Half of the units saturated for every input, or nine tenths of all values. Unit-variance inputs saturate 2% of a
tanh's values; there, at most 4% of the slope is left (Glorot & Bengio 2010)."""

MAX_ERROR = 0.25
"""Rounding error over the rms of the median feature. int8 with one scale has steps of abs_max / 127, and an rms
rounding error of step / sqrt(12) = abs_max / 440: at a quarter, a feature keeps two bits. The limit is therefore a
ratio of 110 to the median (Dettmers et al. 2022, "LLM.int8()", find 20 to 100 and more in large models). Normal
features have 4 to 5."""

MIN_FEATURES, MIN_FEATURE_SAMPLES = 16, 32
"""With fewer features, or fewer samples of each, the median means little."""

_ZERO_SLOPE_AT_ZERO = {"relu", "relu6", "relu2", "threshold", "hardswish", "reglu"}
_ZERO_SLOPE_AT_ZERO |= {"relusquaredactivation", "relusquared"}
"""Activations that can be zero with zero slope: such a unit gets no gradient."""


@check("numeric")
def check_units(view: RecordView) -> Iterator[Finding]:
    for module in view.ran:
        if module.units is not None and module.units.count:
            finding = _dead(view, module, module.units) or _saturated(view, module, module.units)
            if finding is not None:
                yield finding


def is_all_dead(module: ModuleRecord) -> bool:
    """Whether `dead-units` reports that all units are dead."""
    units = module.units
    if units is None or not units.count or module.kind.lower() not in _ZERO_SLOPE_AT_ZERO:
        return False
    return units.dead == units.count and units.samples * units.count >= MIN_SAMPLES


def _dead(view: RecordView, module: ModuleRecord, units: UnitStats) -> Finding | None:
    all_dead, fraction = units.dead == units.count, units.dead / units.count
    samples = units.samples * units.count if all_dead else units.samples
    if module.kind.lower() not in _ZERO_SLOPE_AT_ZERO or samples < MIN_SAMPLES or fraction < DEAD_NOTE:
        return None
    zero = [name for name in module.fed_by if name in view.modules and view.modules[name].has_zero_weights]
    return DEAD_UNITS.found_in(
        module,
        {"fraction": fraction, "dead": units.dead, "units": units.count, "inputs": units.samples},
        "error" if all_dead else "warning" if fraction >= DEAD_WARNING else "note",
        call_site=_call_site(units),
        outlook=" Here every unit is dead, so no earlier layer can learn." if all_dead else "",
        fix=zero_weights_fix(zero[0]) if zero else DEAD_UNITS_FIX,
    )


def _call_site(units: UnitStats) -> str:
    """The call that the statistics are from, if the activation is used in several places."""
    return f" (after `{units.input_module}`)" if units.input_module else ""


def _saturated(view: RecordView, module: ModuleRecord, units: UnitStats) -> Finding | None:
    # An output that no module reads is a gate or the model's output: once trained, these saturate by design.
    is_read = bool(view.readers.get(module.name))
    if units.saturated is None or module.saturated is None or units.samples < MIN_SAMPLES or not is_read:
        return None
    fraction = units.saturated / units.count
    if fraction < MAX_SATURATED_UNITS and module.saturated < MAX_SATURATED_VALUES:
        return None
    input_rms = None if module.input is None else module.input.rms
    evidence = {"units": fraction, "values": module.saturated, "input rms": input_rms}
    return SATURATED_UNITS.found_in(module, evidence, call_site=_call_site(units))


@check("numeric")
def check_outlier_features(view: RecordView) -> Iterator[Finding]:
    """Find outlier features. Many good models have them; they matter for quantization, so this is a note."""
    for module in view.ran:
        features = module.features
        if features is None or not features.outliers or features.median_rms <= 0:
            continue
        number, _, abs_max = features.outliers[0]
        error = abs_max / 127 / 12**0.5 / features.median_rms
        if features.count >= MIN_FEATURES and features.samples >= MIN_FEATURE_SAMPLES and error >= MAX_ERROR:
            evidence = {"feature": number, "abs max": abs_max, "median rms": features.median_rms, "int8 error": error}
            yield OUTLIER_FEATURES.found_in(module, evidence, "note", ratio=abs_max / features.median_rms)
