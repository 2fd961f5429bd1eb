"""Ranks that train differently: the same data on all, other hyperparameters or modes, gradients not reduced."""

from collections.abc import Iterator

from normscope.diagnostics.findings.finding import Finding, FindingKind, RecordView, check
from normscope.diagnostics.findings.rank_weights import (
    describe_groups,
    differences_of,
    differing_weights,
    severity_for,
    show_values,
)
from normscope.diagnostics.module_names import common_parent
from normscope.diagnostics.stats.ranks import RankRecord, list_ranks
from normscope.render.formatting import join_words, pluralize

SAME_DATA = FindingKind("""
same-data-on-ranks: {groups} train on the same data: {batches}
why: Their gradients are copies, so their average is that of one rank, and the other ranks add nothing but cost.
fix: give each rank its own part: DataLoader(dataset, sampler=DistributedSampler(dataset)), with
sampler.set_epoch(epoch) at the start of each epoch; or add the rank to the seed of a random order
""")
GRADIENTS_NOT_REDUCED = FindingKind("""
gradients-not-reduced: ranks step with different gradients{steps}
why: {reason} Each rank follows its own share of the batch, and the weights of the ranks drift apart.
fix: {fix}
""")
HYPERPARAMETERS_DIFFER = FindingKind("""
hyperparameters-differ-between-ranks: {name} is {values}
why: The ranks apply the same gradients differently, so {effect}.
fix: build optimizer and scheduler from the same config on all ranks, and call scheduler.step() equally often
""")
STEPS_DIFFER = FindingKind("""
steps-differ-between-ranks: the ranks made different numbers of optimizer steps: {values}
why: {reason}
fix: step on all ranks or on none: no `if rank == 0:` around optimizer.step(), and skip a batch on all of them; for data
of unequal length, drop_last=True in the sampler, or `with Join([model]):`
""")
MODES_DIFFER = FindingKind("""
mode-differs-between-ranks: {module} is in {values}
why: Dropout and the statistics of norms depend on the mode, so the ranks compute different functions, whose gradients
are averaged.
fix: call model.train() or model.eval() on all ranks, also after a validation that only some of them run
""")


@check("structural")
def check_same_data(view: RecordView) -> Iterator[Finding]:
    ranks = view.record.ranks
    for found in differences_of(view, "data"):
        assert ranks is not None
        losses = {member.rank: member.loss for member in ranks.members}
        same = found.ranks[0]
        batches = int(found.values[0])
        evidence = {"batches": batches, "loss": losses[same[0]], "checksum": _data_of(ranks.members, same[0])}
        yield SAME_DATA.found_in(
            "",
            evidence,
            groups=join_words([list_ranks(group) for group in found.ranks]),
            batches="the inputs of the batch are equal" if batches == 1 else f"all {batches} batches are equal",
        )


def _weights_now(view: RecordView) -> dict[str, int | None]:
    """The number of weights that differ at the end, as evidence."""
    return {"weights that differ now": len(differing_weights(view)) or None}


def _data_of(members: tuple[RankRecord, ...], rank: int) -> str:
    return next(member.data for member in members if member.rank == rank)[:16]


@check("structural")
def check_gradients_reduced(view: RecordView) -> Iterator[Finding]:
    found, ranks = differences_of(view, "gradients"), view.record.ranks
    if not found or ranks is None:
        return
    weights = differences_of(view, "weights")
    if not ranks.wrapper and any(difference.since.startswith("before") for difference in weights):
        return  # these are different models
    tensors = [difference for difference in found if difference.name]
    worst = max(tensors, key=lambda difference: difference.difference or 0.0, default=None)
    outside = sum(member.passes_outside for member in ranks.members)
    unsynced = sum(member.passes_unsynced for member in ranks.members)
    evidence = {
        "difference / rms": None if worst is None else worst.difference,
        "parameter": None if worst is None else worst.name,
        "rms": None if worst is None else show_values(worst),
        "passes outside the wrapper": outside or None,
        "passes within no_sync()": unsynced or None,
        **_weights_now(view),
    }
    reason, fix = _cause_of_gradients(bool(ranks.wrapper), outside, unsynced)
    since = next((difference.since for difference in found if not difference.name), "")
    yield GRADIENTS_NOT_REDUCED.found_in("", evidence, "error", steps=f" {since}" * bool(since), reason=reason, fix=fix)


def _cause_of_gradients(is_wrapped: bool, outside: int, unsynced: int) -> tuple[str, str]:
    """Why gradients differ, and what to do."""
    if not is_wrapped:
        return (
            "The weights agreed at first, but nothing averages the gradients of the ranks.",
            "wrap the model: model = DistributedDataParallel(model); or average each p.grad with dist.all_reduce",
        )
    if outside:
        passes = pluralize(outside, "forward pass")
        return (
            f"DistributedDataParallel averages the gradients of its own passes, and {passes} did not go through it.",
            "call the wrapper, model(x), instead of model.module(x)",
        )
    if unsynced:
        passes = pluralize(unsynced, "forward pass")
        return (
            f"Within no_sync() gradients are not averaged, and {passes} were: the last one before a step must not be.",
            "leave no_sync() before the forward pass of the last micro-batch before optimizer.step()",
        )
    return (
        "Something changed the gradients after the reduction, or a communication hook does not average them.",
        "look for code that changes p.grad on some ranks only, such as clipping by a local loss, and for hooks",
    )


@check("structural")
def check_hyperparameters(view: RecordView) -> Iterator[Finding]:
    sharded = view.record.ranks is not None and view.record.ranks.wrapper == "fully_shard"
    effect = "the shards of one weight train at different speeds" if sharded else "their weights drift apart"
    for found in differences_of(view, "hyperparameters"):
        values = show_values(found)
        evidence = {found.name: values, **_weights_now(view)}
        yield HYPERPARAMETERS_DIFFER.found_in(
            "", evidence, severity_for(view), name=found.name, values=values, effect=effect
        )


@check("structural")
def check_step_counts(view: RecordView) -> Iterator[Finding]:
    for found in differences_of(view, "steps"):
        ranks = view.record.ranks
        assert ranks is not None
        compares_weights = ranks.wrapper != "fully_shard"
        is_equal = compares_weights and not differing_weights(view)
        reason = "The weights of a rank that steps less often are not those of the others."
        if is_equal:
            reason = "The weights are equal now, as after Join; otherwise they would drift apart."
        passes = "; ".join(f"{member.batches} on rank {member.rank}" for member in ranks.members)
        evidence = {"steps": show_values(found), "forward passes": passes, **_weights_now(view)}
        severity = "note" if is_equal else severity_for(view)
        yield STEPS_DIFFER.found_in("", evidence, severity, values=show_values(found), reason=reason)


@check("structural")
def check_modes(view: RecordView) -> Iterator[Finding]:
    found = differences_of(view, "modes")
    if found:
        whole = [difference for difference in found if not difference.name] or found
        place = common_parent([difference.name for difference in whole])
        evidence = {"modules": len(found), "odd": describe_groups(whole[0])}
        pairs = zip(whole[0].values, whole[0].ranks, strict=True)
        values = " and in ".join(f"{mode} mode on {list_ranks(ranks)}" for mode, ranks in pairs)
        yield MODES_DIFFER.found_in(place, evidence, values=values)
