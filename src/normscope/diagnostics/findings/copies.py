"""Copies of modules: target networks, averages of weights and teachers that are trained, or that never move."""

import re
from collections.abc import Iterator

from normscope.diagnostics.findings.finding import Finding, FindingKind, RecordView, check
from normscope.diagnostics.module_names import is_inside, module_ref
from normscope.diagnostics.stats.loop import CopyRecord

TRAINED_COPY = FindingKind("""
target-network-trained: {module}, a copy of {original}, gets gradients{steps}
why: It should follow {original} slowly, or stay fixed. With gradients, the loss is lowered by moving the targets
instead of the predictions.
fix: compute its output under torch.no_grad(), call requires_grad_(False) on it, and keep it out of the optimizer
""")
TRAINED_TEACHER = FindingKind("""
target-network-trained: {module} is trained together with {student}
why: It gets gradients, and an optimizer steps it, so it learns to agree with its student instead of teaching it.
fix: compute its output under torch.no_grad(), call requires_grad_(False) on it, and keep it out of the optimizer
""")
TRAINED_TARGET = FindingKind("""
target-network-trained: the target of {function} has a gradient ({calls} calls)
why: The target is a constant plus a factor times an output of a network, as in reward + discount * next value. With
gradients, the network learns to change its targets instead of its predictions.
fix: compute the target under torch.no_grad(), or pass target.detach() to the loss
""")
NEVER_UPDATED = FindingKind("""
copy-never-updated: {module} did not change in {steps} steps of {original}
why: {reason} It keeps the weights it was copied with, and falls further and further behind.
fix: {fix}
""")
UPDATES_ORIGINAL = FindingKind("""
copy-updates-original: {original} was moved towards {module} after {mixed} steps, and {module} never changed
why: The average is written to the wrong model, which undoes what each step has learned.
fix: swap them: for a, p in zip({copied}.parameters(), {trained}.parameters()): a.data.lerp_(p.data, 1 - decay)
""")
SAME = FindingKind("""
copy-equals-original: {module} and {original} are the same module
why: By its name it is a copy that changes more slowly, but it shares all parameters, so each step moves both.
fix: copy.deepcopy({trained}), and load_state_dict or an average to update it
""")
EQUAL = FindingKind("""
copy-equals-original: {module} was equal to {original} after each of {moved} steps
why: It is overwritten at each step, so it changes as fast as the original, and gives no stable targets.
fix: copy the weights every few hundred steps, or average them: a.lerp_(p, 0.005)
""")

FREQUENT = re.compile(r"ema|momentum|avg|average|shadow|key|_k$|swa", re.IGNORECASE)
"""Names of copies that are updated after each step, not every thousand steps as target networks may be."""

MAY_BE_EQUAL = re.compile(r"old|ref|frozen", re.IGNORECASE)
"""Names of copies that are refreshed as a whole, as the old policy of PPO."""

TOWERS = re.compile(r"source|src|query|context|anchor", re.IGNORECASE)
"""Names of the other side of two trained networks, as in translation or retrieval: `target` is no copy there."""

MIN_STEPS = 12
"""Steps without a change of a copy that is updated at each, or, as some libraries do, at each tenth."""

MIN_LATE_STEPS = 500
"""The same for target networks that nothing writes to."""

MIN_UPDATES = 3


@check("structural")
def check_copies(view: RecordView) -> Iterator[Finding]:
    found = []
    for copied in view.record.copies:
        found += list(_of(copied))
    yield from found
    if not any(finding.name == "target-network-trained" for finding in found):
        for bootstrap in view.record.bootstraps:
            if bootstrap.calls >= MIN_UPDATES:
                evidence = {"calls": bootstrap.calls, "called at": bootstrap.source}
                yield TRAINED_TARGET.found_in("", evidence, function=bootstrap.function)


@check("structural")
def check_teachers(view: RecordView) -> Iterator[Finding]:
    """Find teachers, of another size than their students, that are trained."""
    copies = {copied.module for copied in view.record.copies}
    for name, module in view.modules.items():
        own = name.rpartition(".")[2]
        student = next((n for n in view.modules if n == name[: len(name) - len(own)] + "student"), None)
        if own != "teacher" or name in copies or student is None or module.training is None:
            continue
        inside = [p for m, p in view.parameters if is_inside(m.name, name)]
        if any(p.has_nonzero_gradient and p.in_optimizer and p.update_rms for p in inside):
            yield TRAINED_TEACHER.found_in(module, {}, student=module_ref(student))


def _of(copied: CopyRecord) -> Iterator[Finding]:
    name, original = copied.module, module_ref(copied.original)
    steps = copied.original_steps
    if copied.is_same:
        yield SAME.found_in(name, {"original": copied.original}, original=original, trained=copied.original or "model")
        return
    if copied.got_gradient:
        if not (copied.was_equal or copied.written or not (copied.in_optimizer or TOWERS.search(copied.original))):
            return  # two networks with a side each, both trained
        words = ", and an optimizer steps it" if copied.in_optimizer else ""
        yield TRAINED_COPY.found_in(name, {"original": copied.original}, original=original, steps=words)
        return
    if copied.original_mixed >= MIN_UPDATES and not copied.moved:
        evidence = {"mixed": copied.original_mixed, "steps": steps}
        trained = copied.original or "model"
        yield UPDATES_ORIGINAL.found_in(name, evidence, original=original, copied=name, trained=trained)
    elif not copied.moved:
        yield from _never_updated(copied, original)
    elif copied.equal == copied.moved >= max(MIN_STEPS, steps) // 2 and not MAY_BE_EQUAL.search(name):
        yield EQUAL.found_in(name, {"moved": copied.moved, "steps": steps}, original=original)


def _never_updated(copied: CopyRecord, original: str) -> Iterator[Finding]:
    evidence = {"steps": copied.original_steps, "writes": copied.written}
    reason, fix = "Nothing updates it.", "update it after each optimizer.step(): a.data.lerp_(p.data, 1 - decay)"
    if copied.written >= MIN_UPDATES and copied.original_steps >= MIN_UPDATES:
        reason = "It is written to, but its values stay the same."
        fix = "check the decay (1.0 keeps the old values) and the order of the two sides of the update"
        yield NEVER_UPDATED.found_in(copied.module, evidence, original=original, reason=reason, fix=fix)
    elif FREQUENT.search(copied.module) and copied.original_steps >= MIN_STEPS:
        yield NEVER_UPDATED.found_in(copied.module, evidence, original=original, reason=reason, fix=fix)
    elif re.search("target", copied.module, re.IGNORECASE) and copied.original_steps >= MIN_STEPS:
        severity = "warning" if copied.original_steps >= MIN_LATE_STEPS else "note"
        yield NEVER_UPDATED.found_in(copied.module, evidence, severity, original=original, reason=reason, fix=fix)
