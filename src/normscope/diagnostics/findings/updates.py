"""How far a step moves the weights: too far, hardly at all, or not at all because no optimiser has them."""

import math

from normscope.diagnostics.findings.base import Finding
from normscope.diagnostics.findings.record_view import View, called, fan_in, is_moved, median, short
from normscope.diagnostics.record import ModuleRecord, ParameterRecord

TOO_LARGE = 0.3
"""A step of 0.3 of a weight's own size. About 0.001 is usual; Adam's first step changes every number by the whole rate,
which is 0.05 of weights that start at 0.02 with a rate of 0.001. A hundred steps of 0.3, even if they all went in
different directions, would leave a weight three times its own size away from where it was."""

FELT = 0.1
"""And by so much the gain of the layer has to change: a weight that starts at zero doubles in its second step."""

FELT_TABLE = 0.01
"""The same for the numbers of a table, which adds its rows to the stream as they are."""

ROUNDING = 2.0**-24
"""Half the spacing of float32: a smaller step is lost in the sum, or nearly so."""

LAGGING = 1e-4
"""Of the middle of all matrices: so much more slowly one of them learns than the rest."""

LAGGING_STEP = 1e-6
"""A step below which lagging matters: ten thousand of them, all in one direction, move a weight by a hundredth."""

WARM = 0.1
"""While the rate is less than this of the schedule's full rate, small steps are meant."""


def update_sizes(view: View) -> list[Finding]:
    stepped = [
        (m, p) for m, p in view.matrices if p.update_ratio is not None and p.in_optimizer is not False and is_moved(p)
    ]
    large = [(m, p) for m, p in stepped if (p.update_ratio or 0.0) >= TOO_LARGE and _is_felt(p)]
    found = _too_large(large, len(stepped))
    if _at_full_rate(view):
        found += _too_small(view, [(m, p) for m, p in stepped if p.update_ratio])
    return found


def unoptimised(view: View) -> list[Finding]:
    """Modules whose weights have gradients, but no optimiser that stepped has them."""
    if not view.record.steps:
        return [_strange_finding(view)] if view.record.foreign_optimizer_steps and view.has_gradients else []
    found = []
    for module in view.modules.values():
        lost = [
            p
            for p in module.parameters
            if p.in_optimizer is False and p.requires_grad and is_moved(p) and p.alias_of is None
        ]
        if lost:
            names = ", ".join(parameter.name for parameter in lost)
            found.append(
                Finding(
                    "not-optimised",
                    "warning",
                    module.name,
                    f"no optimiser has {names} of {called(module.name)}",
                    {"parameters": names, "steps": len(view.record.steps)},
                    "It asks for a gradient and got one, but none of the optimisers that stepped was given it, so it "
                    "stays as it started.",
                    f"give it to the optimiser (made before {called(module.name)} was added?): "
                    f"torch.optim.AdamW(model.parameters()); or freeze it: requires_grad_(False)",
                )
            )
    return found


def _strange_finding(view: View) -> Finding:
    return Finding(
        "not-optimised",
        "warning",
        "",
        "an optimiser stepped, but it has none of the model's weights",
        {"steps": view.record.foreign_optimizer_steps},
        "It has others of the very same shapes: those of a copy, or those that the model had before it was made anew. "
        "The model itself stays as it started.",
        "make the optimiser from the model that is trained, and after it: torch.optim.AdamW(model.parameters())",
    )


def _is_felt(parameter: ParameterRecord) -> bool:
    if parameter.predicted_gain is not None:
        return _change_of_gain(parameter) >= FELT
    return _change(parameter) >= FELT_TABLE


def _change(parameter: ParameterRecord) -> float:
    """The size of a step. It is not to be had from the weight's own size, which is that after the step."""
    return (
        (parameter.update_ratio or 0.0) * parameter.values.rms if parameter.update_rms is None else parameter.update_rms
    )


def _change_of_gain(parameter: ParameterRecord) -> float:
    return 0.0 if parameter.predicted_gain is None else _change(parameter) * math.sqrt(fan_in(parameter))


def _too_large(large: list[tuple[ModuleRecord, ParameterRecord]], count: int) -> list[Finding]:
    if not large:
        return []
    worst = max(large, key=_update)
    if 2 * len(large) >= count > 1:  # it is not a layer, but the rate
        return [_large_finding("", worst, len(large))]
    by_module = {module.name: (module, parameter) for module, parameter in sorted(large, key=_update)}
    return [_large_finding(name, found, 1) for name, found in by_module.items()]


def _update(found: tuple[ModuleRecord, ParameterRecord]) -> float:
    return found[1].update_ratio or 0.0


def _large_finding(place: str, worst: tuple[ModuleRecord, ParameterRecord], count: int) -> Finding:
    module, parameter = worst
    update = parameter.update_ratio or 0.0
    name = f"{module.name}.{parameter.name}" if module.name else parameter.name
    return Finding(
        "update-too-large",
        "warning",
        place,
        f"a step changes `{name}` by {short(update)} of its size"
        + (f", and {count - 1} others too far as well" if count > 1 else ""),
        {
            "update / weight": update,
            "usual": 1e-3,
            "change of gain": _change_of_gain(parameter),
            "weights": count,
        },
        f"A step of about 0.001 of a weight is usual. One of {short(update)} writes over what the weight had learnt.",
        f"divide the learning rate by {short(max(2.0, update / 1e-2))} or so, warm it up, or clip gradients",
    )


def _at_full_rate(view: View) -> bool:
    steps = view.record.steps
    return bool(steps) and any(s.lr > 0 and (s.peak_lr is None or s.lr >= WARM * s.peak_lr) for s in steps)


def _too_small(view: View, stepped: list[tuple[ModuleRecord, ParameterRecord]]) -> list[Finding]:
    if not stepped:
        return []
    middle = median([_update(found) for found in stepped])
    if middle < ROUNDING:
        rate = max(step.lr for step in view.record.steps)
        return [
            Finding(
                "update-too-small",
                "warning",
                "",
                f"a step changes weights by {short(middle)} of their size: less than float32 can tell",
                {"update / weight": middle, "usual": 1e-3, "rate": rate},
                f"About 0.001 is usual. At {short(middle)} the step is lost in the rounding of the sum.",
                f"raise the learning rate (now {short(rate)}), and look at whether the loss is scaled down or Adam's "
                f"eps is larger than the gradients",
            )
        ]
    lagging = [
        (module, parameter)
        for module, parameter in sorted(stepped, key=_update, reverse=True)
        if _update((module, parameter)) < min(LAGGING * middle, LAGGING_STEP) and parameter.values.rms > 0
    ]
    by_module = {module.name: (module, parameter) for module, parameter in lagging}
    return [_lagging_finding(module, parameter, middle) for module, parameter in by_module.values()]


def _lagging_finding(module: ModuleRecord, parameter: ParameterRecord, middle: float) -> Finding:
    update = parameter.update_ratio or 0.0
    name = f"{module.name}.{parameter.name}" if module.name else parameter.name
    return Finding(
        "update-too-small",
        "warning",
        module.name,
        f"a step changes `{name}` by {short(update)} of its size; the middle of all is {short(middle)}",
        {"update / weight": update, "update / middle": update / middle, "middle of all": middle},
        f"It learns {short(middle / update)} times more slowly than the rest of the model.",
        f"look at the rate of its parameter group, at the size of its numbers (rms {short(parameter.values.rms)}), and "
        f"at what weakens its gradient",
    )
