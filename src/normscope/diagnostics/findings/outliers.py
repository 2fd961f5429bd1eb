"""Features so large that int8 quantization with one scale loses the others."""

from normscope.diagnostics.findings.base import Finding
from normscope.diagnostics.findings.record_view import RecordView, module_ref
from normscope.diagnostics.record import ModuleRecord
from normscope.render.formatting import format_percent, format_short

MAX_ERROR = 0.25
"""Rounding error over the rms of the median feature. int8 with one scale has steps of abs_max / 127, and an rms
rounding error of step / sqrt(12) = abs_max / 440: at a quarter, a feature keeps two bits. The limit is therefore a
ratio of 110 to the median (Dettmers et al. 2022, "LLM.int8()", find 20 to 100 and more in large models). Normal
features have 4 to 5."""

MIN_FEATURES, MIN_SAMPLES = 16, 32
"""With fewer features, or fewer samples of each, the median means little."""


def check_outlier_features(view: RecordView) -> list[Finding]:
    """Find outlier features. Many good models have them; they matter for quantization, so this is a note."""
    return [f for module in view.ran if (f := _finding(module)) is not None]


def _finding(module: ModuleRecord) -> Finding | None:
    features = module.features
    if features is None or not features.outliers or features.median_rms <= 0:
        return None
    if features.count < MIN_FEATURES or features.samples < MIN_SAMPLES:
        return None
    number, _, abs_max = features.outliers[0]
    error = abs_max / 127 / 12**0.5 / features.median_rms
    if error < MAX_ERROR:
        return None
    return Finding(
        "outlier-features",
        "note",
        module.name,
        f"input feature {number} of {module_ref(module.name)} is {format_short(abs_max / features.median_rms)} times "
        "larger than the median feature",
        {"feature": number, "abs max": abs_max, "median rms": features.median_rms, "int8 error": error},
        f"In int8 with one scale for all features, the rounding error is {format_percent(error)} of the median "
        "feature's rms.",
        "quantize with per-channel scales, move the scale into the weights (SmoothQuant), or keep feature "
        f"{number} in 16 bits",
    )
