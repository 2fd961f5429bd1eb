"""Weights that learn nothing: the gradient does not come to them, or is zero, or their module never ran."""

from normscope.diagnostics.findings.base import Finding
from normscope.diagnostics.findings.record_view import View, blank_fix, called, is_blank, is_inside, is_moved, parent
from normscope.diagnostics.record import ModuleRecord, ParameterRecord


def without_gradient(view: View) -> list[Finding]:
    """Modules that ran, and whose trained weights got no gradient although others did; or no weight did at all."""
    if view.record.interrupted:  # an error on the way back leaves all that is before it without
        return []
    if not view.has_gradients:
        return [_all_silent_finding(view)] if view.gradients else []
    cut, silent = [], []
    for module in view.ran:
        own = [p for p in module.parameters if p.requires_grad and p.alias_of is None]
        if own and all(parameter.gradient is None for parameter in own):
            cut.append(module)
        elif any(_is_still(parameter) for parameter in own):
            silent.append(module)
    found = [_cut_finding(view, module, cut) for module in _outermost(view, cut)]
    if not _is_start(view):
        found += [_silent_finding(view, module) for module in silent]
    return found


def _is_still(parameter: ParameterRecord) -> bool:
    """Whether a matrix got zeros as its gradient. (A bias may, before a norm that takes it away.)"""
    return parameter.gradient is not None and not is_moved(parameter) and len(parameter.shape) >= 2


def _is_start(view: View) -> bool:
    """Whether a factor of zero has a gradient: at the first step it hides all that is before it, and then no more."""
    for module in view.modules.values():
        for parameter in module.parameters:
            if _was_zero(parameter) and is_moved(parameter) and _is_factor(module, parameter):
                return True
    return False


def _was_zero(parameter: ParameterRecord) -> bool:
    return parameter.values.rms == 0 or parameter.update_ratio == 0.0  # no ratio to what was zero before the step


def _is_factor(module: ModuleRecord, parameter: ParameterRecord) -> bool:
    """Whether it multiplies: a matrix; or a gain or a number, if nothing beside it does (then it is added to that)."""
    others = [other for other in module.parameters if "bias" not in other.name]
    return len(parameter.shape) >= 2 or ("bias" not in parameter.name and all(map(_was_zero, others)))


def _outermost(view: View, modules: list[ModuleRecord]) -> list[ModuleRecord]:
    """One module for each part that is cut off as a whole: the outermost that has no weight with a gradient."""
    found: dict[str, ModuleRecord] = {}
    for module in modules:
        name = module.name
        while parent(name) and parent(name) not in view.reached:
            name = parent(name)
        found.setdefault(name, view.modules.get(name, module))
    return list(found.values())


def _cut_finding(view: View, module: ModuleRecord, cut: list[ModuleRecord]) -> Finding:
    used = _is_used(view, module)
    parameters = [p for m in cut if is_inside(m.name, module.name) for p in m.parameters if p.requires_grad]
    return Finding(
        "no-gradient",
        "warning" if used else "note",
        module.name,
        f"{called(module.name)} ran, but no gradient came to its {len(parameters)} parameters",
        {"parameters": len(parameters)},
        "Other weights got a gradient in the same pass. "
        + (
            "Its output goes into what the loss sees, so the way back is cut between: it stays as it started."
            if used
            else "None of those that a gradient came through was seen to read its output: it is not used, or only as a "
            "target."
        ),
        "look for detach(), .data, torch.no_grad(), .item() or numpy between it and the loss; or freeze it on purpose: "
        "requires_grad_(False)"
        if used
        else "drop the part if it is not needed (some models have a flag for it, such as add_pooling_layer=False); if "
        "it is not to be trained, say so: requires_grad_(False)",
    )


def _is_used(view: View, module: ModuleRecord) -> bool:
    """Whether its output, as it is or after others that got no gradient either, goes to one that a gradient came to."""
    waiting = [m.name for m in view.ran if is_inside(m.name, module.name)]
    known = set(waiting)
    while waiting:
        name = waiting.pop()
        for reader in (*view.readers.get(name, ()), *view.joining.get(name, ())):
            if is_inside(reader.name, module.name) or reader.name in known:
                continue
            if reader.gradient is not None:
                return True
            known.add(reader.name)
            waiting.append(reader.name)
    return False


def _all_silent_finding(view: View) -> Finding:
    count, lost = len(view.gradients), _should_move(view)
    blank = [is_blank(module) for module, _ in view.matrices]
    return Finding(
        "zero-gradient",
        "warning" if lost else "note",
        "",
        f"all gradients that came, to {count} parameters, are exactly zero",
        {"parameters": count},
        "There was a way back, but nothing came by it: the loss is multiplied by zero, or its gradient is too small "
        "for the type it is in."
        if lost
        else "There was a way back, but the loss is flat here: a margin that all have passed, or a factor of zero.",
        blank_fix("")
        if blank and all(blank)
        else "look at the loss for a factor of zero or a mask that hides all; in float16 scale it "
        "(torch.amp.GradScaler)",
    )


def _should_move(view: View) -> bool:
    """Whether there is a slope: the model's output has one, or a cross-entropy does; or it may have rounded to zero."""
    root = view.modules.get("")
    if root is not None and root.gradient is not None and root.gradient.rms > 0:
        return True
    halves = any(dtype == "float16" for m in view.ran for dtype in (m.dtype, *(p.dtype for p in m.parameters)))
    return halves or any(loss.value > 0 for loss in view.record.losses)


def _silent_finding(view: View, module: ModuleRecord) -> Finding:
    still = [parameter.name for parameter in module.parameters if _is_still(parameter)]
    reason, fix = _why_still(view, module, still)
    return Finding(
        "zero-gradient",
        "warning",
        module.name,
        f"the gradient of {', '.join(still)} of {called(module.name)} is exactly zero",
        {"parameters": ", ".join(still)},
        f"Other weights got a gradient in the same pass, but this one cannot learn: {reason}.",
        fix,
    )


def _why_still(view: View, module: ModuleRecord, still: list[str]) -> tuple[str, str]:
    """The reason why a gradient is zero, as far as it can be told, and what to do."""
    if all(name.startswith("weight_hh_l") and name.endswith("_reverse") for name in still):
        return (
            "of the reverse direction only the place is read where it begins, the last step, before it has been "
            "anywhere",
            "read each direction where it ends: outputs, state = rnn(x), then torch.cat([h[-2], h[-1]], dim=-1), where "
            "h is state, and state[0] of an LSTM",
        )
    if module.input is not None and module.input.count and module.input.abs_max == 0:
        before = [name for name in module.fed_by if name in view.modules]
        return (
            "all that it was given is zero",
            f"look at what comes before it{f', {called(before[0])}' if before else ''}: units that are always zero, "
            f"weights that are zero, or an empty input",
        )
    if is_blank(module):
        return "all its weights are zero, and so is all that it gives to what comes after it", blank_fix(module.name)
    readers = view.readers.get(module.name, [])
    readers = [*readers, *(beyond for reader in readers for beyond in view.readers.get(reader.name, []))]
    blank = next((reader.name for reader in readers if is_blank(reader)), None)
    if blank is not None:
        return f"all weights of {called(blank)}, which comes after it, are zero", blank_fix(blank)
    return (
        "what comes after it is dead, masked, multiplied by zero, or rounded to zero",
        "look at what reads its output: units that are always zero, a mask that hides all, a factor of zero; in "
        "float16 scale the loss (torch.amp.GradScaler)",
    )


def never_ran(view: View) -> list[Finding]:
    """Modules with weights that were never called, the outermost of each; nothing where no module was."""
    if view.record.interrupted or not view.ran:
        return []
    found: dict[str, int] = {}
    for module in view.modules.values():
        own = [parameter for parameter in module.parameters if parameter.alias_of is None]
        # Some modules use the weights of others without calling them; then gradients come all the same.
        if module.order is not None or not own or any(is_moved(parameter) for parameter in own):
            continue
        holder = view.modules.get(parent(module.name))
        if holder is not None and holder.attention is not None:  # torch's attention uses its projection like this
            continue
        name = module.name
        while parent(name) and parent(name) not in view.awake:
            name = parent(name)
        found[name] = found.get(name, 0) + module.parameter_count
    return [
        Finding(
            "never-ran",
            "note",
            name,
            f"{called(name)} never ran; it has {count} numbers",
            {"numbers": count},
            "It takes memory, and space in checkpoints and optimiser states if it was given to one.",
            "call it in forward, or drop it",
        )
        for name, count in found.items()
    ]
