"""Gradients that never arrive: losses that autograd cannot follow back to the model, and what cut the graph."""

from collections.abc import Iterator

from normscope.diagnostics.findings.finding import Finding, FindingKind, RecordView, check, in_line
from normscope.diagnostics.module_names import (
    is_follower,
    is_inside,
    module_ref,
    name_pattern,
    outer_names,
    outermost_outside,
    parent_name,
)
from normscope.diagnostics.stats.graph import GraphCut, GraphStats
from normscope.render.formatting import join_words

LOSS_WITHOUT_GRAPH = FindingKind("""
graph-cut: backward() was called on a loss that requires no gradient{at}
why: torch raises "element 0 of tensors does not require grad and does not have a grad_fn": {reason}. No parameter can
learn.
fix: {fix}
""")
LOSS_WITHOUT_MODEL = FindingKind("""
graph-cut: no backward pass reaches the model: its loss{at} does not depend on any parameter as far as autograd knows
why: backward() ran without an error, but {reason}. All parameters keep their values.
fix: {fix}
""")
CUT = FindingKind("""
no-gradient: {module} gets no gradient: {what} cuts the graph{at}
why: {parameters} of its parameters were used, and what was computed from them reached the loss, but {function}()
{where}returned it without a gradient, so {module} cannot learn.{also}
fix: {fix}
""")
LOST_IN_NUMPY = FindingKind("""
no-gradient: {module} gets no gradient: its output becomes a NumPy array{at}
why: {parameters} of its parameters were used. An array made from them left torch, a tensor of the same shape came back,
and no gradient did: {module} cannot learn.{also}
fix: {fix}
""")
FROZEN_IN_FORWARD = FindingKind("""
no-gradient: {module} is frozen while it runs: requires_grad_(False){at}
why: {parameters} of its parameters required a gradient when the x-ray began, and the optimizer has them, but a forward
turned it off {where}and nothing turned it on again.{also}
fix: {fix}
""")
SAMPLED = FindingKind("""
graph-cut: {reader} reads samples that pass no gradient on to {module}{at}
why: The samples are drawn with sample(), under no_grad. {reader} learns from them, but how its loss depends on the
distribution is lost: {module} learns from the rest of the loss alone, such as a KL term.
fix: draw with rsample(), or reparametrize: mean + std * torch.randn_like(std)
""")
UNUSED = FindingKind("""
no-gradient: {module} ran, but its {parameters} parameters got no gradient
why: Nothing that was computed from them reached any of the {losses} losses: its output is not used.
fix: check the forward for a variable that is computed and not used afterwards, or for another one used in its place;
otherwise remove {module}
""")

MIN_LOSSES = 4
"""Backward passes without a module: with fewer, its turn may come, as that of one task of several."""

_WHAT = {
    "no_grad": "torch.no_grad()",
    "detach": "detach()",
    "data": ".data",
    "integers": "{function}(), which returns no floating-point numbers,",
    "zero slope": "{function}(), whose slope is zero everywhere,",
    "python": "{function}(), which returns Python numbers,",
    "numpy": "{function}(), which leaves torch for NumPy,",
    "copy": "a new tensor made from its values",
    "numpy?": "NumPy",
    "frozen": "requires_grad_(False)",
    "in place": "{function}() into a tensor without a gradient",
    "no gradient": "{function}()",
}
_FIX = {
    "no_grad": "call {module} outside of torch.no_grad(); to freeze it on purpose, use requires_grad_(False)",
    "detach": "remove the detach(); to freeze {module} on purpose, use requires_grad_(False)",
    "data": "use the tensor itself instead of .data; to freeze {module} on purpose, use requires_grad_(False)",
    "integers": "pass on the values (logits or probabilities) instead of indices or comparisons, e.g. a softmax or "
    "F.gumbel_softmax(logits, hard=True); for a score, use a differentiable loss such as cross_entropy",
    "zero slope": "leave the rounding out of training, or pass the gradient straight through: x + (x.round() - "
    "x).detach()",
    "python": "keep tensors until after backward(): torch.stack(losses) instead of numbers; item() only for logging",
    "numpy": "compute it with torch functions instead of NumPy until after backward()",
    "numpy?": "compute it with torch functions instead of NumPy until after backward()",
    "frozen": "remove requires_grad_(False) from forward; to freeze {module} on purpose, leave it out of the optimizer",
    "copy": "use the tensor itself, or torch.stack for a list of tensors, instead of torch.tensor(...) or "
    "nn.Parameter(...)",
    "in place": "write into a tensor outside of no_grad(), or collect the parts in a list and use torch.stack",
    "no gradient": "look for what makes its result a constant; to freeze {module} on purpose, use "
    "requires_grad_(False)",
}


@check("structural")
def check_graph(view: RecordView) -> Iterator[Finding]:
    graph = view.record.graph
    if graph is None or not graph.backward_calls:
        return
    if graph.without_graph:
        reason, fix = _why_whole(graph)
        at = in_line(graph.line)
        yield LOSS_WITHOUT_GRAPH.found_in("", _evidence(graph), "error", at=at, reason=reason, fix=fix)
    elif graph.calls_without_model == graph.backward_calls and not view.gradients and _is_optimized(view, graph):
        reason, fix = _why_whole(graph)
        at = in_line(graph.line)
        yield LOSS_WITHOUT_MODEL.found_in("", _evidence(graph), "error", at=at, reason=reason, fix=fix)
    else:
        yield from _cuts(view, graph)
        yield from _unused(view, graph)


def _evidence(graph: GraphStats) -> dict[str, float | str]:
    cut = _likely_first(graph)[0] if graph.cuts else None
    found: dict[str, float | str] = {"backward calls": graph.backward_calls}
    return (
        found
        if cut is None or cut.reason == "sample"
        else found | {"cut by": cut.function, "at": cut.line or "", "in": cut.module}
    )


def _is_optimized(view: RecordView, graph: GraphStats) -> bool:
    """Whether somebody tries to train the model with these losses."""
    return bool(graph.carries_values or any(p.in_optimizer for _, p in view.parameters))


def _why_whole(graph: GraphStats) -> tuple[str, str]:
    if not graph.cuts:
        reason = "the values of the loss were not computed from the model's parameters, as far as torch functions show"
        return reason, "compute the loss from the output of the model, with torch functions, outside of no_grad()"
    cut = _likely_first(graph)[0]
    where = f" in {module_ref(cut.module)}" if cut.module else ""
    reason = f"the loss was computed from the model, but {_what(cut)} cuts the graph{where}{in_line(cut.line)}"
    return reason, _FIX[cut.reason].format(module="the model")


def _likely_first(graph: GraphStats) -> list[GraphCut]:
    """Indices and samples come last: where something else cuts the graph too, they are often meant.

    Of x.detach().numpy(), NumPy is the cause: without detach() it would raise an error.
    """
    order = ("numpy", "python", "", "integers", "numpy?")
    return sorted(graph.cuts, key=lambda cut: order.index(cut.reason if cut.reason in order else ""))


def _what(cut: GraphCut) -> str:
    return _WHAT[cut.reason].format(function=cut.function)


def _cuts(view: RecordView, graph: GraphStats) -> Iterator[Finding]:
    """One finding for each cut, in the last module before it; the others are named."""
    reported, trained = set[str](), _names_that_learn(view)
    for cut in _likely_first(graph):
        if cut.reason == "sample":
            yield _sampled(view, cut)
            continue
        groups: dict[str, list[str]] = {}
        for name in cut.parameters:
            groups.setdefault(outermost_outside(trained, parent_name(name)), []).append(name)
        groups = {name: found for name, found in groups.items() if name not in reported}
        if not groups:
            continue
        place = max(groups, key=lambda name: _last_order(view, name))
        reported |= set(groups)
        others = [name for name in groups if name != place]
        kind = {"numpy?": LOST_IN_NUMPY, "frozen": FROZEN_IN_FORWARD}.get(cut.reason, CUT)
        yield kind.found_in(
            place,
            {"parameters": len(groups[place]), "cut by": cut.function, "cut in": cut.module or None},
            _severity(view, graph, cut, place),
            what=_what(cut),
            at=in_line(cut.line),
            function=cut.function,
            where=f"in {module_ref(cut.module)} " if cut.module else "",
            also=f" Neither can {join_words([module_ref(name) for name in others])}." if others else "",
            fix=_FIX[cut.reason].format(module=module_ref(place)),
        )


def _sampled(view: RecordView, cut: GraphCut) -> Finding:
    modules = {parent_name(name) for name in cut.parameters}
    last = max(modules, key=view.execution_order)
    is_trained = any(p.in_optimizer for m, p in view.parameters if m.name in modules)
    evidence = {"parameters": len(cut.parameters), "read by": cut.module}
    severity = "warning" if is_trained else "note"
    return SAMPLED.found_in(last, evidence, severity, reader=module_ref(cut.module), at=in_line(cut.line))


def _names_that_learn(view: RecordView) -> set[str]:
    names = {module.name for module, parameter in view.parameters if parameter.has_nonzero_gradient}
    return names | {outer for name in names for outer in outer_names(name)}


def _last_order(view: RecordView, place: str) -> int:
    return max((m.order or 0 for m in view.ran if is_inside(m.name, place)), default=-1)


def _severity(view: RecordView, graph: GraphStats, cut: GraphCut, place: str) -> str:
    """A note if it may be meant: nothing trains the parameters, or they follow those of another module."""
    names = set(cut.parameters)
    own = [(m, p) for m, p in view.parameters if _full_name(m.name, p.name) in names]
    trained = [p.in_optimizer for _, p in own]
    is_copy = is_follower(place) or bool(names.intersection(graph.copies))
    if is_copy or names.intersection(graph.set_by_hand) or False in trained:
        return "note"
    return "warning" if any(trained) or _feeds_trained(view, place) else "note"


def _full_name(module: str, parameter: str) -> str:
    return f"{module}.{parameter}" if module else parameter


def _feeds_trained(view: RecordView, place: str) -> bool:
    """Whether a module with a gradient reads the output of a module. (Without a step, this shows that it matters.)"""
    inside = [m.name for m in view.ran if is_inside(m.name, place)]
    readers = [r for name in inside for r in (*view.readers.get(name, ()), *view.adders.get(name, ()))]
    return any(reader.gradient is not None and not is_inside(reader.name, place) for reader in readers)


def _unused(view: RecordView, graph: GraphStats) -> Iterator[Finding]:
    patterns = {name_pattern(name) for name in _names_that_learn(view)}
    for name in graph.unused:
        own = [p for m, p in view.parameters if is_inside(m.name, name) and p.requires_grad]
        if not own or any(p.gradient is not None for p in own):
            continue
        is_trained = any(p.in_optimizer for p in own) and graph.backward_calls >= MIN_LOSSES
        has_peers = "*" in name_pattern(name) and name_pattern(name) in patterns
        severity = "warning" if is_trained and not has_peers and not is_follower(name) else "note"
        yield UNUSED.found_in(name, {"parameters": len(own)}, severity, losses=graph.backward_calls)
