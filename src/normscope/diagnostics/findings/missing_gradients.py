"""Weights that cannot learn: no gradient, a zero gradient, or a module that never ran."""

from normscope.diagnostics.findings.base import Finding
from normscope.diagnostics.findings.record_view import (
    RecordView,
    has_nonzero_gradient,
    has_zero_weights,
    is_inside,
    module_ref,
    parent_name,
    zero_weights_fix,
)
from normscope.diagnostics.record import ModuleRecord, ParameterRecord


def check_missing_gradients(view: RecordView) -> list[Finding]:
    """Find modules that ran but whose weights got no gradient, or only zeros, although others did."""
    if view.record.interrupted:  # an error in backward leaves all earlier layers without a gradient
        return []
    if not view.has_gradients:
        return [_all_zero_finding(view)] if view.gradients else []
    detached, zero = [], []
    for module in view.ran:
        own = [p for p in module.parameters if p.requires_grad and p.alias_of is None]
        if own and all(parameter.gradient is None for parameter in own):
            detached.append(module)
        elif any(_has_zero_gradient(parameter) for parameter in own):
            zero.append(module)
    found = [_detached_finding(view, module, detached) for module in _outermost(view, detached)]
    if not _is_zero_initialized(view):
        found += [_zero_finding(view, module) for module in zero]
    return found


def _has_zero_gradient(parameter: ParameterRecord) -> bool:
    """Whether the gradient of a matrix is zero. (A bias before a norm that removes it may have one.)"""
    return parameter.gradient is not None and not has_nonzero_gradient(parameter) and len(parameter.shape) >= 2


def _is_zero_initialized(view: RecordView) -> bool:
    """Whether a zero factor has a gradient: it blocks the gradient of earlier layers in the first step only."""
    for module in view.modules.values():
        for parameter in module.parameters:
            if _was_zero(parameter) and has_nonzero_gradient(parameter) and _is_factor(module, parameter):
                return True
    return False


def _was_zero(parameter: ParameterRecord) -> bool:
    return parameter.values.rms == 0 or parameter.update_ratio == 0.0  # undefined ratio: zero before the step


def _is_factor(module: ModuleRecord, parameter: ParameterRecord) -> bool:
    """Whether it multiplies: a matrix; or a gain, unless a nonzero parameter beside it shows that it is added."""
    others = [other for other in module.parameters if "bias" not in other.name]
    return len(parameter.shape) >= 2 or ("bias" not in parameter.name and all(map(_was_zero, others)))


def _outermost(view: RecordView, modules: list[ModuleRecord]) -> list[ModuleRecord]:
    """For each detached part, the outermost module without any gradient."""
    found: dict[str, ModuleRecord] = {}
    for module in modules:
        name = module.name
        while parent_name(name) and parent_name(name) not in view.names_with_gradient:
            name = parent_name(name)
        found.setdefault(name, view.modules.get(name, module))
    return list(found.values())


def _detached_finding(view: RecordView, module: ModuleRecord, detached: list[ModuleRecord]) -> Finding:
    used = _affects_loss(view, module)
    parameters = [p for m in detached if is_inside(m.name, module.name) for p in m.parameters if p.requires_grad]
    return Finding(
        "no-gradient",
        "warning" if used else "note",
        module.name,
        f"{module_ref(module.name)} ran, but its {len(parameters)} parameters got no gradient",
        {"parameters": len(parameters)},
        "Other parameters got a gradient in the same backward pass. "
        + (
            "Its output contributes to the loss, so the graph is cut in between and the module cannot learn."
            if used
            else "No module with a gradient reads its output: it is unused, or used only as a target."
        ),
        "look for detach(), .data, torch.no_grad(), .item() or NumPy between the module and the loss; to freeze it on "
        "purpose, use requires_grad_(False)"
        if used
        else "remove the module if it is not needed (some models have a flag, such as add_pooling_layer=False); to "
        "freeze it on purpose, use requires_grad_(False)",
    )


def _affects_loss(view: RecordView, module: ModuleRecord) -> bool:
    """Whether its output reaches a module with a gradient, directly or through modules without one."""
    waiting = [m.name for m in view.ran if is_inside(m.name, module.name)]
    known = set(waiting)
    while waiting:
        name = waiting.pop()
        for reader in (*view.readers.get(name, ()), *view.adders.get(name, ())):
            if is_inside(reader.name, module.name) or reader.name in known:
                continue
            if reader.gradient is not None:
                return True
            known.add(reader.name)
            waiting.append(reader.name)
    return False


def _all_zero_finding(view: RecordView) -> Finding:
    count, unexpected = len(view.gradients), _expects_gradient(view)
    zero = [has_zero_weights(module) for module, _ in view.matrices]
    return Finding(
        "zero-gradient",
        "warning" if unexpected else "note",
        "",
        f"the gradients of all {count} parameters are exactly zero",
        {"parameters": count},
        "The backward pass ran, but every gradient is zero: the loss is multiplied by zero, or the gradient underflows "
        "in its dtype."
        if unexpected
        else "The backward pass ran, but the loss is flat here: a margin that all samples satisfy, or a zero factor.",
        zero_weights_fix("")
        if zero and all(zero)
        else "check the loss for a zero factor or a mask that hides everything; in float16, scale the loss "
        "(torch.amp.GradScaler)",
    )


def _expects_gradient(view: RecordView) -> bool:
    """Whether the loss has a slope: the output has a gradient, a cross-entropy is positive, or float16 underflowed."""
    root = view.modules.get("")
    if root is not None and root.gradient is not None and root.gradient.rms > 0:
        return True
    halves = any(dtype == "float16" for m in view.ran for dtype in (m.dtype, *(p.dtype for p in m.parameters)))
    return halves or any(loss.value > 0 for loss in view.record.losses)


def _zero_finding(view: RecordView, module: ModuleRecord) -> Finding:
    names = [parameter.name for parameter in module.parameters if _has_zero_gradient(parameter)]
    reason, fix = _why_zero(view, module, names)
    return Finding(
        "zero-gradient",
        "warning",
        module.name,
        f"the gradient of {', '.join(names)} of {module_ref(module.name)} is exactly zero",
        {"parameters": ", ".join(names)},
        f"Other parameters got a gradient in the same backward pass, but this module cannot learn: {reason}.",
        fix,
    )


def _why_zero(view: RecordView, module: ModuleRecord, names: list[str]) -> tuple[str, str]:
    """The likely reason for a zero gradient, and its fix."""
    if all(name.startswith("weight_hh_l") and name.endswith("_reverse") for name in names):
        return (
            "only the last time step is read, where the reverse direction has just started and has no history",
            "read each direction at its end: outputs, state = rnn(x), then torch.cat([h[-2], h[-1]], dim=-1), where h "
            "is state (state[0] for an LSTM)",
        )
    if module.input is not None and module.input.count and module.input.abs_max == 0:
        before = [name for name in module.fed_by if name in view.modules]
        return (
            "its input is all zeros",
            f"check what comes before it{f', {module_ref(before[0])}' if before else ''}: dead units, zero weights, or "
            "an all-zero input",
        )
    if has_zero_weights(module):
        return "all its weights are zero, so its output is too", zero_weights_fix(module.name)
    readers = view.readers.get(module.name, [])
    readers = [*readers, *(beyond for reader in readers for beyond in view.readers.get(reader.name, []))]
    zero = next((reader.name for reader in readers if has_zero_weights(reader)), None)
    if zero is not None:
        return f"all weights of the later layer {module_ref(zero)} are zero", zero_weights_fix(zero)
    return (
        "what follows it is dead, masked, multiplied by zero, or underflows",
        "check the modules that read its output for dead units, a mask that hides everything, or a zero factor; in "
        "float16, scale the loss (torch.amp.GradScaler)",
    )


def check_unused_modules(view: RecordView) -> list[Finding]:
    """Find modules with weights that were never called, the outermost of each; nothing if no module ran."""
    if view.record.interrupted or not view.ran:
        return []
    found: dict[str, int] = {}
    for module in view.modules.values():
        own = [parameter for parameter in module.parameters if parameter.alias_of is None]
        # Some modules use another's weights without calling it; those weights still get gradients.
        if module.order is not None or not own or any(has_nonzero_gradient(parameter) for parameter in own):
            continue
        holder = view.modules.get(parent_name(module.name))
        if holder is not None and holder.attention is not None:  # nn.MultiheadAttention uses out_proj this way
            continue
        name = module.name
        while parent_name(name) and parent_name(name) not in view.executed_names:
            name = parent_name(name)
        found[name] = found.get(name, 0) + module.parameter_count
    return [
        Finding(
            "never-ran",
            "note",
            name,
            f"{module_ref(name)} never ran; it has {count} parameters",
            {"parameters": count},
            "It takes up memory, in the model, in checkpoints and, if it is being optimized, in the optimizer state.",
            "call it in forward, or remove it",
        )
        for name, count in found.items()
    ]
