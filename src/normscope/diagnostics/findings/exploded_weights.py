"""Weights that training has made far larger than any initialization."""

from normscope.diagnostics.findings.base import Finding
from normscope.diagnostics.findings.initial_weights import LARGEST_GAIN, is_before_norm
from normscope.diagnostics.findings.record_view import RecordView, linear_weight, module_ref
from normscope.diagnostics.record import ModuleRecord, ParameterRecord
from normscope.render.formatting import format_short


def check_exploded_weights(view: RecordView) -> list[Finding]:
    """Find excessive gains in trained weights. If most weights have one, report the model once."""
    linear = [(module, weight) for module in view.ran if (weight := linear_weight(module)) is not None]
    trained = [(m, w) for m, w in linear if w.alias_of is None and w.requires_grad and view.is_trained(w)]
    large = [(m, w) for m, w in trained if (w.predicted_gain or 0.0) >= LARGEST_GAIN and not is_before_norm(view, m)]
    if len(large) > 1 and 2 * len(large) >= len(trained):
        return [_finding(view, "", max(large, key=lambda found: found[1].predicted_gain or 0.0), len(large))]
    return [_finding(view, module.name, (module, weight), 1) for module, weight in large]


def _finding(view: RecordView, place: str, worst: tuple[ModuleRecord, ParameterRecord], count: int) -> Finding:
    module, weight = worst
    gain = weight.predicted_gain or 0.0
    after = f"after {view.total_steps} steps" if view.total_steps else "after training"
    return Finding(
        "exploded-weights",
        "warning",
        place,
        f"{after} the weights of {module_ref(module.name)} have a gain of {format_short(gain)}; initializations use at "
        f"most 1.7" + (f"; {count - 1} other layers have exploded too" if count > 1 else ""),
        {"predicted gain": gain, "weight rms": weight.values.rms, "weights": count},
        "Trained weights normally reach a gain of 1 to 3. A learning rate that is too high produces such weights: each "
        "step pushes them further, and what they have learned is lost.",
        "lower the learning rate, clip gradients (nn.utils.clip_grad_norm_) and add warmup; restart from an earlier "
        "checkpoint",
    )
