"""Features so much larger than the others that eight bits with one scale for all cannot hold both."""

from normscope.diagnostics.findings.base import Finding
from normscope.diagnostics.findings.record_view import View, called, percent, short
from normscope.diagnostics.record import ModuleRecord

LOST = 0.25
"""The rounding error over the size of the middle feature. int8 with one scale has steps of largest / 127, and rounding
errs by a step / sqrt(12) = largest / 440: at a quarter a feature keeps two bits. So the limit is largest / middle = 110
(Dettmers et al. 2022, "LLM.int8()", find 20 to 100 and more in large models). Normal features have 4 to 5."""

LEAST_FEATURES, LEAST_SEEN = 16, 32
"""Of fewer features, or fewer values of each, the middle one says little."""


def outlier_features(view: View) -> list[Finding]:
    """A note: it is a property of many good models, and matters to those who quantize."""
    return [f for module in view.ran if (f := _finding(module)) is not None]


def _finding(module: ModuleRecord) -> Finding | None:
    features = module.features
    if features is None or not features.outliers or features.median_rms <= 0:
        return None
    if features.count < LEAST_FEATURES or features.samples < LEAST_SEEN:
        return None
    number, _, largest = features.outliers[0]
    error = largest / 127 / 12**0.5 / features.median_rms
    if error < LOST:
        return None
    return Finding(
        "outlier-features",
        "note",
        module.name,
        f"feature {number} of what {called(module.name)} reads is {short(largest / features.median_rms)} times larger "
        f"than the middle one",
        {"feature": number, "largest": largest, "middle rms": features.median_rms, "int8 error": error},
        f"With eight bits and one scale for all, rounding errs by {percent(error)} of the middle feature's size.",
        "quantize with a scale for each channel, move the scale into the weights (SmoothQuant), or keep feature "
        f"{number} in 16 bits",
    )
