"""Ranks whose weights, buffers or running statistics differ, although they should train one model."""

from collections.abc import Iterator

from normscope.diagnostics.findings.finding import Finding, FindingKind, RecordView, check
from normscope.diagnostics.module_names import common_parent, module_ref, parent_name
from normscope.diagnostics.stats.ranks import RankDifference, list_ranks
from normscope.render.formatting import pluralize

WEIGHTS_DIFFER = FindingKind("""
weights-differ-between-ranks: {count} of {module} {verb} on {groups}{since}: {names}
why: {reason} The ranks train different models: their gradients don't belong to the same weights, and a checkpoint of
one rank is not that of another.
fix: {fix}
""")
BUFFERS_DIFFER = FindingKind("""
buffers-differ-between-ranks: {count} of {module} {verb} on {groups}: {names}
why: {reason} A checkpoint, which one rank writes, has only its own, and the ranks compute different things.
fix: set them alike on all ranks (the same seed, or dist.broadcast(buffer, 0)); those that should differ are better
registered with persistent=False
""")
RUNNING_STATISTICS_DIFFER = FindingKind("""
running-statistics-differ-between-ranks: the running statistics of {module}{more} differ on {groups}, by
{standard deviations} standard deviations
why: Each rank updates them with its own share of the batch, and nothing combines them. In eval mode every rank has
another model, and a checkpoint has the statistics of one share of the data.
fix: {fix}
""")
SHAPES_DIFFER = FindingKind("""
shapes-differ-between-ranks: {count} of {module} {verb} in shape or dtype on {groups}, or exist on some only: {names}
why: That is how the parts of a pipeline or a tensor-parallel model look. Ranks that share the data of one model need
the same parameters.
fix: if the ranks should train one model, build it from the same config on all of them
""")

SYNC_STATISTICS = "nn.SyncBatchNorm.convert_sync_batchnorm(model), or sync=True for the norms of normscope"
LARGE_SHIFT = 1.0
"""Difference of running statistics in standard deviations: as in `stale-running-statistics`, a different layer."""

MAX_NAMES = 4
"""Names in a title."""


def differences_of(view: RecordView, kind: str) -> list[RankDifference]:
    """The differences of this kind between ranks."""
    ranks = view.record.ranks
    return [] if ranks is None else [difference for difference in ranks.differences if difference.kind == kind]


def differing_weights(view: RecordView) -> list[RankDifference]:
    """Parameters that differ between ranks that should have the same ones."""
    return [*differences_of(view, "weights"), *differences_of(view, "shards")]


def severity_for(view: RecordView) -> str:
    """An error if the weights of one distributed model differ now."""
    ranks = view.record.ranks
    is_one_model = ranks is not None and bool(ranks.wrapper)
    return "error" if is_one_model and differing_weights(view) else "warning"


def describe_groups(difference: RankDifference) -> str:
    """Name the ranks that differ from the largest group.

    >>> describe_groups(RankDifference("weights", "", ((0, 2), (1,)), ("", "")))
    'rank 1, but not on ranks 0 and 2'
    >>> describe_groups(RankDifference("weights", "", ((0,), (1,), (2,)), ("", "", "")))
    'ranks 0, 1 and 2'
    """
    groups = sorted(difference.ranks, key=len, reverse=True)
    if len(groups[0]) == 1:
        return list_ranks(tuple(rank for group in difference.ranks for rank in group))
    odd = tuple(sorted(rank for group in groups[1:] for rank in group))
    return f"{list_ranks(odd)}, but not on {list_ranks(groups[0])}"


def show_values(difference: RankDifference) -> str:
    """The value of each group of ranks, as evidence.

    >>> show_values(RankDifference("steps", "", ((0,), (1, 2)), ("3", "2")))
    '3 on rank 0; 2 on ranks 1 and 2'
    """
    pairs = zip(difference.values, difference.ranks, strict=True)
    return "; ".join(f"{value} on {list_ranks(ranks)}" for value, ranks in pairs)


def _common(found: list[RankDifference], noun: str) -> dict[str, str]:
    """What the titles of all kinds say."""
    names = [f"`{difference.name}`" for difference in found[:MAX_NAMES]]
    more = len(found) - len(names)
    return {
        "count": pluralize(len(found), noun),
        "verb": "differ" if len(found) > 1 else "differs",
        "groups": describe_groups(found[0]),
        "names": ", ".join(names) + (f" and {more} more" if more else ""),
    }


def _place(found: list[RankDifference]) -> str:
    return common_parent([parent_name(difference.name) for difference in found])


@check("structural")
def check_rank_weights(view: RecordView) -> Iterator[Finding]:
    found = differing_weights(view)
    ranks = view.record.ranks
    if not found or ranks is None:
        return
    found.sort(key=lambda difference: -(difference.difference or 0.0))
    worst, since = found[0], found[0].since
    causes = [cause for kind in ("gradients", "hyperparameters", "steps") for cause in differences_of(view, kind)]
    if not ranks.wrapper and differences_of(view, "shapes"):
        return  # these are different models
    if causes and (since.startswith("in step") or not since):
        return  # these have findings of their own, which count the weights
    evidence = {
        "difference / rms": worst.difference,
        "rms": show_values(worst),
        "parameters": len(found),
        "of": ranks.compared,
        "since": since or None,
    }
    reason, fix = _cause_of_weights(since, ranks.wrapper)
    common = _common(found, "parameter")
    severity = severity_for(view)
    words = f", {'since ' * since.startswith('before')}{since}" if since else ""
    yield WEIGHTS_DIFFER.found_in(
        _place(found), evidence, severity, **{**common, "since": words}, reason=reason, fix=fix
    )


def _cause_of_weights(since: str, wrapper: str) -> tuple[str, str]:
    """Why weights differ, and what to do."""
    if wrapper == "fully_shard":
        return (
            "FSDP2 averages the gradients of copies of a shard, but never copies the weights.",
            "use the same seed on all ranks before fully_shard(model), and change weights on all of them",
        )
    if wrapper:
        if since.startswith("in step"):
            return (
                "The gradients agree, so the optimizers of the ranks do different things with them.",
                "use the same optimizer and hyperparameters on all ranks, and load its state on all of them",
            )
        return (
            "DistributedDataParallel copies the weights of the first rank once, when it is created; these were changed "
            "later.",
            "change weights only before DistributedDataParallel(model), or on all ranks alike: no "
            "`if rank == 0: model.load_state_dict(...)` after it",
        )
    if since == "before the x-ray":
        return (
            "Nothing has made the weights of the ranks equal, such as the same seed or DistributedDataParallel.",
            "wrap the model: model = DistributedDataParallel(model), which copies the weights of rank 0 and averages "
            "gradients; for the parts of a tensor-parallel model, or for models that should differ, ignore this",
        )
    return (
        "Nothing keeps the weights of the ranks equal.",
        "wrap the model: model = DistributedDataParallel(model); or do on all ranks what changes the weights on one",
    )


@check("structural")
def check_rank_buffers(view: RecordView) -> Iterator[Finding]:
    found = differences_of(view, "buffers")
    ranks = view.record.ranks
    if found and ranks is not None:
        reason = "Nothing has made them equal."
        if ranks.wrapper == "fully_shard":
            reason = "FSDP2 shards parameters and leaves buffers alone."
        elif ranks.wrapper:
            reason = (
                "DistributedDataParallel was told not to copy those of the first rank (forward_sync_buffers=False)."
            )
        evidence = {"buffers": len(found), "rms": show_values(found[0]), "difference / rms": found[0].difference}
        yield BUFFERS_DIFFER.found_in(_place(found), evidence, **_common(found, "buffer"), reason=reason)


@check("structural")
def check_rank_running_statistics(view: RecordView) -> Iterator[Finding]:
    found = differences_of(view, "running-statistics")
    ranks = view.record.ranks
    if not found or ranks is None:
        return
    worst = max(found, key=lambda difference: difference.difference or 0.0)
    fix = SYNC_STATISTICS
    if ranks.wrapper == "DistributedDataParallel":
        fix += "; or leave forward_sync_buffers (broadcast_buffers) at True, which gives all ranks those of the first"
    more = f" and {len(found) - 1} other norms" if len(found) > 1 else ""
    evidence = {"standard deviations": worst.difference, "norms": len(found), "rms": show_values(worst)}
    severity = "warning" if (worst.difference or 0.0) >= LARGE_SHIFT else "note"
    yield RUNNING_STATISTICS_DIFFER.found_in(
        worst.name, evidence, severity, more=more, groups=describe_groups(worst), fix=fix
    )


@check("structural")
def check_rank_shapes(view: RecordView) -> Iterator[Finding]:
    found = differences_of(view, "shapes")
    if found:
        evidence = {"parameters": len(found), "shape": f"{module_ref(found[0].name)} is {show_values(found[0])}"}
        is_partial = any("missing" in difference.values for difference in found)
        severity = "note" if is_partial else "warning"
        yield SHAPES_DIFFER.found_in(_place(found), evidence, severity, **_common(found, "parameter"))
