"""Update sizes: steps that change weights too much, too little, or not at all because no optimizer has them."""

import math

from normscope.diagnostics.findings.base import Finding
from normscope.diagnostics.findings.record_view import (
    RecordView,
    fan_in,
    has_nonzero_gradient,
    median,
    module_ref,
    parameter_name,
)
from normscope.diagnostics.record import ModuleRecord, ParameterRecord
from normscope.render.formatting import format_short

TOO_LARGE = 0.3
"""Update rms over weight rms. About 0.001 is typical; Adam's first step changes every element by the full learning
rate, which is 0.05 for weights of std 0.02 and a learning rate of 0.001. A hundred steps of 0.3, even in random
directions, would move a weight by three times its own rms."""

MIN_GAIN_CHANGE = 0.1
"""The layer's gain must change by this much too: a weight that starts at zero doubles in its second step."""

MIN_TABLE_CHANGE = 0.01
"""The same for the elements of an embedding, whose rows are added to the stream directly."""

ROUNDING = 2.0**-24
"""Half a float32 ulp: a smaller step is lost in the addition, or nearly so."""

LAGGING = 1e-4
"""Relative to the median of all matrices: how much more slowly one of them learns."""

LAGGING_STEP = 1e-6
"""Update ratio below which lagging matters: ten thousand such steps in one direction move a weight by 1%."""

WARMED_UP = 0.1
"""Below this fraction of the schedule's peak learning rate, small steps are intended."""


def check_update_sizes(view: RecordView) -> list[Finding]:
    updated = [(m, p) for m, p in view.matrices if p.update_ratio is not None]
    updated = [(m, p) for m, p in updated if p.in_optimizer is not False and has_nonzero_gradient(p)]
    large = [(m, p) for m, p in updated if (p.update_ratio or 0.0) >= TOO_LARGE and _matters(p)]
    found = _too_large(large, len(updated))
    if _is_warmed_up(view):
        found += _too_small(view, [(m, p) for m, p in updated if p.update_ratio])
    return found


def check_optimizer_coverage(view: RecordView) -> list[Finding]:
    """Find modules whose weights have gradients but are in no optimizer that stepped."""
    if not view.record.steps:
        foreign = view.record.foreign_optimizer_steps and view.has_gradients
        return [_foreign_optimizer_finding(view)] if foreign else []
    found = []
    for module in view.modules.values():
        trainable = [p for p in module.parameters if p.requires_grad and p.alias_of is None]
        missing = [p for p in trainable if p.in_optimizer is False and has_nonzero_gradient(p)]
        if missing:
            names = ", ".join(parameter.name for parameter in missing)
            name = module_ref(module.name)
            found.append(
                Finding(
                    "not-in-optimizer",
                    "warning",
                    module.name,
                    f"{names} of {name} {'is' if len(missing) == 1 else 'are'} not in any optimizer",
                    {"parameters": names, "steps": len(view.record.steps)},
                    "The parameters require a gradient and got one, but no optimizer that stepped holds them, so they "
                    "keep their initial values.",
                    f"pass them to the optimizer (was it created before {name} was added?): "
                    f"torch.optim.AdamW(model.parameters()); or freeze them: requires_grad_(False)",
                )
            )
    return found


def _foreign_optimizer_finding(view: RecordView) -> Finding:
    return Finding(
        "not-in-optimizer",
        "warning",
        "",
        "an optimizer stepped, but it holds none of the model's parameters",
        {"steps": view.record.foreign_optimizer_steps},
        "It holds parameters of the same shapes: those of a copy, or of a model that was rebuilt after the optimizer "
        "was created. The model itself keeps its initial values.",
        "create the optimizer after the model, from the model that is trained: torch.optim.AdamW(model.parameters())",
    )


def _matters(parameter: ParameterRecord) -> bool:
    if parameter.predicted_gain is not None:
        return _gain_change(parameter) >= MIN_GAIN_CHANGE
    return _update_rms(parameter) >= MIN_TABLE_CHANGE


def _update_rms(parameter: ParameterRecord) -> float:
    """The rms of an update. The fallback is inexact: the recorded rms of the weight is that after the step."""
    if parameter.update_rms is None:
        return (parameter.update_ratio or 0.0) * parameter.values.rms
    return parameter.update_rms


def _gain_change(parameter: ParameterRecord) -> float:
    return 0.0 if parameter.predicted_gain is None else _update_rms(parameter) * math.sqrt(fan_in(parameter))


def _too_large(large: list[tuple[ModuleRecord, ParameterRecord]], count: int) -> list[Finding]:
    if not large:
        return []
    worst = max(large, key=_update_ratio)
    if 2 * len(large) >= count > 1:  # not one layer, but the learning rate
        return [_large_finding("", worst, len(large))]
    by_module = {module.name: (module, parameter) for module, parameter in sorted(large, key=_update_ratio)}
    return [_large_finding(name, found, 1) for name, found in by_module.items()]


def _update_ratio(found: tuple[ModuleRecord, ParameterRecord]) -> float:
    return found[1].update_ratio or 0.0


def _large_finding(place: str, worst: tuple[ModuleRecord, ParameterRecord], count: int) -> Finding:
    module, parameter = worst
    ratio = parameter.update_ratio or 0.0
    return Finding(
        "update-too-large",
        "warning",
        place,
        f"one step changes `{parameter_name(module, parameter)}` by {format_short(ratio)} of its rms"
        + (f", and {count - 1} other weights by too much" if count > 1 else ""),
        {
            "update / weight": ratio,
            "typical": 1e-3,
            "change of gain": _gain_change(parameter),
            "weights": count,
        },
        f"A typical step changes a weight by about 0.001 of its rms. One of {format_short(ratio)} overwrites what the "
        "weight has learned.",
        f"divide the learning rate by about {format_short(max(2.0, ratio / 1e-2))}, add warmup, or clip gradients",
    )


def _is_warmed_up(view: RecordView) -> bool:
    steps = view.record.steps
    return bool(steps) and any(s.lr > 0 and (s.peak_lr is None or s.lr >= WARMED_UP * s.peak_lr) for s in steps)


def _too_small(view: RecordView, updated: list[tuple[ModuleRecord, ParameterRecord]]) -> list[Finding]:
    if not updated:
        return []
    middle = median([_update_ratio(found) for found in updated])
    if middle < ROUNDING:
        lr = max(step.lr for step in view.record.steps)
        return [
            Finding(
                "update-too-small",
                "warning",
                "",
                f"one step changes weights by {format_short(middle)} of their rms, less than float32 can represent",
                {"update / weight": middle, "typical": 1e-3, "lr": lr},
                f"About 0.001 is typical. At {format_short(middle)} the update is lost to rounding.",
                f"raise the learning rate (now {format_short(lr)}), and check whether the loss is scaled down or "
                "Adam's eps is larger than the gradients",
            )
        ]
    lagging = [
        (module, parameter)
        for module, parameter in sorted(updated, key=_update_ratio, reverse=True)
        if _update_ratio((module, parameter)) < min(LAGGING * middle, LAGGING_STEP) and parameter.values.rms > 0
    ]
    by_module = {module.name: (module, parameter) for module, parameter in lagging}
    return [_lagging_finding(module, parameter, middle) for module, parameter in by_module.values()]


def _lagging_finding(module: ModuleRecord, parameter: ParameterRecord, middle: float) -> Finding:
    ratio = parameter.update_ratio or 0.0
    return Finding(
        "update-too-small",
        "warning",
        module.name,
        f"one step changes `{parameter_name(module, parameter)}` by {format_short(ratio)} of its rms; the median is "
        f"{format_short(middle)}",
        {"update / weight": ratio, "update / median": ratio / middle, "median": middle},
        f"It learns {format_short(middle / ratio)} times more slowly than the rest of the model.",
        f"check the learning rate of its parameter group, its scale (rms {format_short(parameter.values.rms)}), and "
        "what reduces its gradient",
    )
