"""Weights that cannot learn, because they get no gradient or a zero gradient."""

from collections.abc import Iterator

from normscope.diagnostics.findings.finding import Finding, FindingKind, RecordView, check, zero_weights_fix
from normscope.diagnostics.findings.units import is_all_dead
from normscope.diagnostics.module_names import is_inside, module_ref, outermost_outside, parent_name
from normscope.diagnostics.record import ModuleRecord, ParameterRecord
from normscope.render.formatting import all_of

DETACHED = FindingKind("""
no-gradient: {module} ran, but its {parameters} parameters got no gradient
why: Other parameters got a gradient in the same backward pass. Its output contributes to the loss, so the graph is cut
in between and the module cannot learn.
fix: look for detach(), .data, torch.no_grad(), .item() or NumPy between the module and the loss; to freeze it on
purpose, use requires_grad_(False)
""")
UNUSED_OUTPUT = FindingKind("""
no-gradient: {module} ran, but its {parameters} parameters got no gradient
why: Other parameters got a gradient in the same backward pass. No module with a gradient reads its output: it is
unused, or used only as a target.
fix: remove the module if it is not needed (some models have a flag, such as add_pooling_layer=False); to freeze it on
purpose, use requires_grad_(False)
""")
ALL_GRADIENTS_ZERO = FindingKind("""
zero-gradient: the gradients of {which} are exactly zero
why: The backward pass ran, but {reason}
fix: {fix}
""")
ZERO_GRADIENT = FindingKind("""
zero-gradient: the gradient of {parameters} of {module} is exactly zero
why: Other parameters got a gradient in the same backward pass, but this module cannot learn: {reason}.
fix: {fix}
""")


@check("numeric")
def check_missing_gradients(view: RecordView) -> Iterator[Finding]:
    """Find modules that ran but whose weights got no gradient, or only zeros, although others did."""
    if view.record.interrupted:  # an error in backward leaves all earlier layers without a gradient
        return
    if not view.has_gradients:
        if view.gradients and not any(gradient.non_finite for gradient in view.gradients):
            yield _all_zero(view)
        return
    detached, zero = [], []
    for module in view.ran:
        own = [p for p in module.parameters if p.requires_grad and p.alias_of is None]
        if own and all(parameter.gradient is None and not parameter.has_changed for parameter in own):
            detached.append(module)
        elif any(_has_zero_gradient(parameter) for parameter in own) and not _is_cut(view, module):
            zero.append(module)
    explained = _explained_by_graph(view)
    for name in dict.fromkeys(outermost_outside(view.names_with_gradient, module.name) for module in detached):
        if any(is_inside(name, other) or is_inside(other, name) for other in explained):
            continue
        inside = [p for m in detached if is_inside(m.name, name) for p in m.parameters if p.requires_grad]
        kind, severity = (DETACHED, "warning") if _affects_loss(view, name) else (UNUSED_OUTPUT, "note")
        yield kind.found_in(name, {"parameters": len(inside)}, severity)
    for module in zero if not _is_zero_initialized(view) else ():
        if _is_next_to_dead(view, module):
            continue
        names = [parameter.name for parameter in module.parameters if _has_zero_gradient(parameter)]
        reason, fix = _why_zero(view, module, names)
        yield ZERO_GRADIENT.found_in(module, {"parameters": ", ".join(names)}, reason=reason, fix=fix)


def _explained_by_graph(view: RecordView) -> set[str]:
    """Modules without a gradient of which `findings.graph` knows why."""
    graph = view.record.graph
    cut = (
        ()
        if graph is None
        else (parent_name(name) for cut in graph.cuts if cut.reason != "sample" for name in cut.parameters)
    )
    return {outermost_outside(view.names_with_gradient, name) for name in cut} | set(graph.unused if graph else ())


def _is_next_to_dead(view: RecordView, module: ModuleRecord) -> bool:
    """Whether units that are all dead, which another finding reports, feed the module or read its output."""
    if any(name in view.modules and is_all_dead(view.modules[name]) for name in module.fed_by):
        return True
    return not module.has_zero_weights and any(map(is_all_dead, view.readers.get(module.name, [])))


def _is_cut(view: RecordView, module: ModuleRecord) -> bool:
    """Whether a function with a slope of zero, such as round(), is the known reason for its gradient of zero."""
    graph = view.record.graph
    return graph is not None and any(
        parent_name(name) == module.name for cut in graph.cuts if cut.reason != "sample" for name in cut.parameters
    )


def _has_zero_gradient(parameter: ParameterRecord) -> bool:
    """Whether the gradient of a matrix is zero. (A bias before a norm that removes it may have one.)"""
    return parameter.gradient is not None and not parameter.has_nonzero_gradient and len(parameter.shape) >= 2


def _is_zero_initialized(view: RecordView) -> bool:
    """Whether a zero factor has a gradient: it blocks the gradient of earlier layers in the first step only."""
    return any(_was_zero(p) and p.has_nonzero_gradient and _is_factor(module, p) for module, p in view.parameters)


def _was_zero(parameter: ParameterRecord) -> bool:
    return parameter.values.rms == 0 or parameter.update_ratio == 0.0  # undefined ratio: zero before the step


def _is_factor(module: ModuleRecord, parameter: ParameterRecord) -> bool:
    """Whether it multiplies: a matrix; or a gain, unless a nonzero parameter beside it shows that it is added."""
    others = [other for other in module.parameters if "bias" not in other.name]
    return len(parameter.shape) >= 2 or ("bias" not in parameter.name and all(map(_was_zero, others)))


def _affects_loss(view: RecordView, name: str) -> bool:
    """Whether the output of a module reaches one with a gradient, directly or through modules without one."""
    waiting = [m.name for m in view.ran if is_inside(m.name, name)]
    known = set(waiting)
    while waiting:
        source = waiting.pop()
        for reader in (*view.readers.get(source, ()), *view.adders.get(source, ())):
            if is_inside(reader.name, name) or reader.name in known:
                continue
            if reader.gradient is not None:
                return True
            known.add(reader.name)
            waiting.append(reader.name)
    return False


def _all_zero(view: RecordView) -> Finding:
    severity, reason = "note", "the loss is flat here: a margin that all samples satisfy, or a zero factor."
    if _expects_gradient(view):
        severity = "warning"
        reason = "every gradient is zero: the loss is multiplied by zero, or the gradient underflows in its dtype."
    fix = "check the loss for a zero factor or a mask that hides everything; in float16, scale the loss "
    fix += "(torch.amp.GradScaler)"
    if view.matrices and all(module.has_zero_weights for module, _ in view.matrices):
        fix = zero_weights_fix("")
    evidence, which = {"parameters": len(view.gradients)}, all_of(len(view.gradients), "parameter")
    return ALL_GRADIENTS_ZERO.found_in("", evidence, severity, which=which, reason=reason, fix=fix)


def _expects_gradient(view: RecordView) -> bool:
    """Whether the loss has a slope: the output has a gradient, a cross-entropy is positive, or float16 underflowed."""
    root = view.modules.get("")
    if root is not None and root.gradient is not None and root.gradient.rms > 0:
        return True
    halves = any(dtype == "float16" for m in view.ran for dtype in (m.dtype, *(p.dtype for p in m.parameters)))
    return halves or any(loss.value > 0 for loss in view.record.losses)


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
            f"check its input{f', {module_ref(before[0])}' if before else ''}: dead units, zero weights, or "
            "an all-zero input",
        )
    if module.has_zero_weights:
        return "all its weights are zero, so its output is too", zero_weights_fix(module.name)
    readers = view.readers.get(module.name, [])
    readers = [*readers, *(beyond for reader in readers for beyond in view.readers.get(reader.name, []))]
    zero = next((reader.name for reader in readers if reader.has_zero_weights), None)
    if zero is not None:
        return f"all weights of the later layer {module_ref(zero)} are zero", zero_weights_fix(zero)
    return (
        "a later layer is dead, masked, multiplied by zero, or underflows",
        "check the modules that read its output for dead units, a mask that hides everything, or a zero factor; in "
        "float16, scale the loss (torch.amp.GradScaler)",
    )
