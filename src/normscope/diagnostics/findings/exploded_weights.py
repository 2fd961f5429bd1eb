"""What a learning rate that is too high leaves behind: weights that have grown far beyond any start."""

from normscope.diagnostics.findings.base import Finding
from normscope.diagnostics.findings.initial_weights import LARGEST_GAIN, is_before_norm
from normscope.diagnostics.findings.record_view import View, called, linear_weight, short
from normscope.diagnostics.record import ModuleRecord, ParameterRecord


def weights_grown(view: View) -> list[Finding]:
    """Gains far off theory in weights that steps have made what they are. If most are so, it is the model's rate."""
    linear = [(module, weight) for module in view.ran if (weight := linear_weight(module)) is not None]
    moved = [(m, w) for m, w in linear if w.alias_of is None and w.requires_grad and view.has_moved(w)]
    grown = [(m, w) for m, w in moved if (w.predicted_gain or 0.0) >= LARGEST_GAIN and not is_before_norm(view, m)]
    if len(grown) > 1 and 2 * len(grown) >= len(moved):
        return [_finding(view, "", max(grown, key=lambda found: found[1].predicted_gain or 0.0), len(grown))]
    return [_finding(view, module.name, (module, weight), 1) for module, weight in grown]


def _finding(view: View, place: str, worst: tuple[ModuleRecord, ParameterRecord], count: int) -> Finding:
    module, weight = worst
    gain = weight.predicted_gain or 0.0
    after = f"after {view.steps_made} steps" if view.steps_made else "after its steps"
    return Finding(
        "weights-grown",
        "warning",
        place,
        f"{after} the weights of {called(module.name)} scale a random input by {short(gain)}; no start does by more "
        f"than 1.7" + (f"; and {count - 1} others have grown as well" if count > 1 else ""),
        {"predicted gain": gain, "rms of weights": weight.values.rms, "weights": count},
        "Trained weights come to a gain of 1 to 3. A learning rate that is too high leaves such "
        "weights behind: each step throws them further, and what they had learnt is small beside it.",
        "lower the learning rate, clip gradients (nn.utils.clip_grad_norm_) and warm the rate up; the weights as they "
        "are now are best thrown away",
    )
