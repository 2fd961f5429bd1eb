"""The record of an optimizer, and what it has to do with the others."""

from collections.abc import Collection

from normscope.diagnostics.stats.loop import OptimizerRecord
from normscope.diagnostics.watchers.optimizers.seen import SeenOptimizer
from normscope.diagnostics.watchers.optimizers.updates import (
    as_number,
    is_decoupled,
)


def record_of(seen: SeenOptimizer, all_seen: Collection[SeenOptimizer]) -> OptimizerRecord:
    """The record of one of all optimizers."""
    group = seen.settings
    betas = group.get("betas") or (None, None)
    mixed, other = _mixed(seen, all_seen)
    return OptimizerRecord(
        kind=seen.kind,
        recreated=seen.recreated,
        module=seen.module,
        parameters=len(seen.tracked),
        is_frozen=seen.is_frozen,
        scheduled=seen.scheduled,
        shared_with=_shared_with(seen, all_seen),
        clipped=seen.clipped,
        is_torch=seen.is_torch,
        steps=seen.steps,
        discarded=seen.discarded,
        without_gradient=seen.without_gradient,
        zeroed=seen.zeroed,
        repeated=seen.repeated,
        unchanged=seen.unchanged,
        mixed=mixed,
        mixed_with="" if other is None else other.module,
        leads_to=other is not None and any(used and max(used) in other.reached for used in seen.used),
        lr=tuple(seen.lr),
        peak_lr=seen.peak_lr,
        weight_decay=as_number(group.get("weight_decay")),
        momentum=as_number(group.get("momentum")),
        beta1=as_number(betas[0]),
        beta2=as_number(betas[1]),
        eps=as_number(group.get("eps")),
        is_decoupled=is_decoupled(seen.kind, group),
        is_adaptive=seen.is_adaptive,
        decay_share=seen.decay_share,
        eps_share=seen.eps_share,
        moved=seen.moved,
    )


def _shared_with(seen: SeenOptimizer, all_seen: Collection[SeenOptimizer]) -> str | None:
    """The module of an optimizer whose parameters this one also steps, beside others, on other backward passes."""
    own = {id(t) for t in seen.tracked}
    for other in all_seen:
        theirs = {id(t) for t in other.tracked}
        if theirs < own and other.steps and seen.steps and not (seen.is_nested or other.is_nested):
            used, their_used = set().union(*seen.used), set().union(*other.used)
            if used - their_used and their_used - used:
                return other.module
    return None


def _mixed(seen: SeenOptimizer, all_seen: Collection[SeenOptimizer]) -> tuple[int, SeenOptimizer | None]:
    """Steps with gradients of a backward pass that another optimizer used, beside a later one of its own."""
    for other in all_seen:
        if other is seen or {id(t) for t in other.tracked} & {id(t) for t in seen.tracked}:
            continue
        theirs = set().union(*other.used)
        steps = list(zip(other.used, other.stepped_at, strict=True))
        count = 0
        for used in seen.used:
            last = max(used, default=0)
            if last not in theirs:
                count += any(used & before for before, at in steps if at < last)
        if count:
            return count, other
    return 0, None
