"""Parameters that no optimizer trains: unregistered, missing from the optimizer, or of a module that never ran."""

import math
import re
from collections import defaultdict
from collections.abc import Iterator

from normscope.diagnostics.findings.finding import Finding, FindingKind, RecordView, check
from normscope.diagnostics.module_names import is_inside, outermost_outside, parent_name
from normscope.diagnostics.record import UnregisteredParameter

NOT_IN_OPTIMIZER = FindingKind("""
not-in-optimizer: {parameters} of {module} {verb} not in any optimizer
why: The parameters require a gradient and got one, but no optimizer that stepped holds them, so they keep their initial
values.
fix: pass them to the optimizer (was it created before {module} was added?): torch.optim.AdamW(model.parameters()); or
freeze them: requires_grad_(False)
""")
FOREIGN_OPTIMIZER = FindingKind("""
not-in-optimizer: an optimizer stepped, but it holds none of the model's parameters
why: It holds parameters of the same shapes: those of a copy, or of a model that was rebuilt after the optimizer was
created. The model itself keeps its initial values.
fix: create the optimizer after the model, from the model that is trained: torch.optim.AdamW(model.parameters())
""")
UNREGISTERED_PARAMETERS = FindingKind("""
unregistered-parameters: {module} uses {description}
why: The weights require a gradient but are missing from parameters(): an optimizer built from it does not train them,
state_dict() does not save them, and to(device) does not move them.
fix: store layers in nn.ModuleList or nn.ModuleDict instead of a plain list or dict, single weights as nn.Parameter, and
create both in __init__, not in forward; for constants, call requires_grad_(False)
""")
NEVER_RAN = FindingKind("""
never-ran: {module} never ran; it has {parameters} parameters
why: It takes up memory, in the model, in checkpoints and, if it is being optimized, in the optimizer state.
fix: call it in forward, or remove it
""")

WAITING_STEPS = 12
"""Steps of other models after which the first step of this one should have been seen; a generator waits for five."""


@check("structural")
def check_optimizer_coverage(view: RecordView) -> Iterator[Finding]:
    """Find modules whose weights have gradients but are in no optimizer that stepped."""
    steps, foreign = len(view.record.steps), view.record.foreign_optimizer_steps
    if not steps and foreign and view.has_gradients and not any(p.has_changed for _, p in view.parameters):
        yield FOREIGN_OPTIMIZER.found_in("", {"steps": foreign})
    for module in view.modules.values() if steps else ():
        trainable = [p for p in module.parameters if p.requires_grad and p.alias_of is None]
        missing = [p.name for p in trainable if p.in_optimizer is False and p.has_nonzero_gradient]
        missing = [] if any(p.has_changed for p in trainable) or _is_copy(view, module.name) else missing
        if missing:
            evidence = {"parameters": ", ".join(missing), "steps": steps}
            severity = "note" if _may_wait(view, module.name) else "warning"
            yield NOT_IN_OPTIMIZER.found_in(module, evidence, severity, verb="is" if len(missing) == 1 else "are")


def _is_copy(view: RecordView, name: str) -> bool:
    """Whether it is part of a target network or an average of weights, which has findings of its own."""
    return any(is_inside(name, copied.module) for copied in view.record.copies)


def _may_wait(view: RecordView, name: str) -> bool:
    """Whether its optimizer may step later: the loop calls several models, and the optimizer of this one is not known.

    A generator, for example, makes one step for each five of its critic.
    """
    root = view.modules.get("")
    if root is None or root.order is not None or len(view.record.steps) >= WAITING_STEPS:
        return False
    part = name.partition(".")[0]
    inside = [p for m, p in view.parameters if is_inside(m.name, part) and p.requires_grad]
    others = [p for m, p in view.parameters if not is_inside(m.name, part) and p.in_optimizer]
    return bool(others) and not any(p.in_optimizer for p in inside)


@check("structural")
def check_unregistered_parameters(view: RecordView) -> Iterator[Finding]:
    """Return one finding per module that uses such weights. Weights that an optimizer has are not recorded."""
    by_module: dict[str, list[UnregisteredParameter]] = defaultdict(list)
    for parameter in view.record.unregistered_parameters:
        by_module[parameter.module].append(parameter)
    for name, found in by_module.items():
        count, shape = sum(parameter.count for parameter in found), " x ".join(map(str, found[0].shape))
        description = f"a weight ({shape}) that is not a registered parameter"
        if count != 1:
            description = f"{count} weights (the first {shape}) that are not registered parameters"
        elements = sum(math.prod(parameter.shape) * parameter.count for parameter in found)
        evidence = {"weights": count, "elements": elements, "first used by": found[0].function}
        yield UNREGISTERED_PARAMETERS.found_in(name, evidence, description=description)


@check("structural")
def check_unused_modules(view: RecordView) -> Iterator[Finding]:
    """Find modules with weights that were never called, the outermost of each; nothing if no module ran."""
    if view.record.interrupted or not view.ran:
        return
    counts: dict[str, int] = defaultdict(int)
    for module in view.modules.values():
        own = [parameter for parameter in module.parameters if parameter.alias_of is None]
        # Some modules use another's weights without calling it; those weights still get gradients.
        if module.order is not None or not own or any(parameter.has_nonzero_gradient for parameter in own):
            continue
        holder = view.modules.get(parent_name(module.name))
        if holder is None or holder.attention is None:  # nn.MultiheadAttention uses out_proj without calling it
            counts[outermost_outside(view.executed_names, module.name)] += module.parameter_count
    for name, count in counts.items():
        severity = "warning" if _is_expected_to_run(view, name) else "note"
        yield NEVER_RAN.found_in(name, {"parameters": count}, severity)


def _is_expected_to_run(view: RecordView, name: str) -> bool:
    """Whether the optimizer has its weights, and either its siblings ran in every batch, or its parent ran in many.

    Siblings are modules like it whose names differ in a number. Of experts and of tasks, only some run in a batch.
    """
    inside = [module for module in view.modules.values() if is_inside(module.name, name)]
    if not any(parameter.in_optimizer for module in inside for parameter in module.parameters):
        return False
    batches, parent = view.record.batches, view.modules.get(parent_name(name))
    module = view.modules.get(name)
    if module is None or batches < FEW_BATCHES or len(view.record.steps) < FEW_BATCHES or _OPTIONAL.search(name):
        return False
    stem = name.rstrip("0123456789")
    siblings = [
        other
        for other in view.modules.values()
        if other is not module and other.name.rstrip("0123456789") == stem != other.name and other.kind == module.kind
    ]
    if siblings:
        return all(other.calls % batches == 0 for other in siblings) and any(other.calls for other in siblings)
    return parent is not None and parent.order is not None and parent.calls >= batches >= MANY_BATCHES


FEW_BATCHES = 3
"""Layers that are skipped at random, with a probability of 0.1 to 0.5, run in one of three batches or more."""

MANY_BATCHES = 8
"""Batches without a call of a module, after which it is not just a task whose turn has not come."""

_OPTIONAL = re.compile(r"pool|aux|expert|task|teacher|target|ema|momentum|adapter|lora", re.IGNORECASE)
"""Modules that are used only at times, or by other models than this one."""
