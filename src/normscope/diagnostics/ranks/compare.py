"""Find out where ranks differ, from what they have published."""

from collections.abc import Callable, Iterator, Sequence

from normscope.diagnostics.collect.wrappers import ParallelWrapper
from normscope.diagnostics.module_names import parent_name
from normscope.diagnostics.ranks.checksums import Check, difference_of
from normscope.diagnostics.ranks.summary import OptimizerSummary, Published, RankSummary
from normscope.diagnostics.stats.ranks import RankDifference, RankRecord, RanksRecord
from normscope.render.formatting import format_number

_TENSORS = ("weights", "shards", "buffers", "running-statistics", "gradients")
_MAX_DIFFERENCES = 200
"""Differences of one kind that are recorded."""


def compare_ranks(
    wrapper: ParallelWrapper, expected: Sequence[int], own: Published, others: Sequence[Published]
) -> RanksRecord:
    """Compare this rank with the others that answered."""
    members = sorted([own, *others], key=lambda member: member.summary.rank)
    differences: list[RankDifference] = []
    if others:
        optimizers = list(_optimizer_differences(members))
        is_in_step = not any(difference.kind == "steps" for difference in optimizers)
        for kind in ("shapes", *_TENSORS, "modes"):
            if kind != "gradients" or is_in_step:  # otherwise they are those of different steps
                differences += list(_section_differences(kind, members))[:_MAX_DIFFERENCES]
        differences += [*(_gradient_steps(members) if is_in_step else []), *optimizers]
        differences += _same_data(members) if wrapper.is_data_parallel else []
    sections = own.summary.sections
    return RanksRecord(
        rank=own.summary.rank,
        wrapper=wrapper.kind,
        expected=tuple(expected),
        members=tuple(_rank_record(member.summary) for member in members),
        compared=sum(sections[kind].size for kind in _TENSORS if kind in sections and kind != "gradients"),
        differences=tuple(differences),
    )


def _rank_record(summary: RankSummary) -> RankRecord:
    return RankRecord(
        rank=summary.rank,
        batches=summary.batches,
        backward_passes=summary.backward_passes,
        steps=summary.steps,
        training=summary.training,
        loss=float(summary.loss) if summary.loss else None,
        data=summary.inputs[0] if summary.inputs else "",
        passes_outside=summary.passes_outside,
        passes_unsynced=summary.passes_unsynced,
    )


def _groups(members: Sequence[Published], key: Callable[[Published], str | None]) -> dict[str, list[Published]]:
    """Group the ranks by a value; without those that have none."""
    found: dict[str, list[Published]] = {}
    for member in members:
        value = key(member)
        if value is not None:
            found.setdefault(value, []).append(member)
    return found


def _ranks(groups: dict[str, list[Published]]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(member.summary.rank for member in group) for group in groups.values())


def _section_differences(kind: str, members: Sequence[Published]) -> Iterator[RankDifference]:
    """Compare what a section says of each name, on the ranks that have it; for shapes, a missing name counts."""
    having = [member for member in members if kind in member.sections]
    by_digest = {member.summary.sections[kind].digest for member in having}
    if len(by_digest) < 2:
        return
    statistics: dict[str, RankDifference] = {}
    for name in dict.fromkeys(name for member in having for name in member.sections[kind]):
        missing = "missing" if kind == "shapes" else ""
        groups = _groups(having, lambda m: m.sections[kind].get(name, missing).partition(" ")[0] or None)  # noqa: B023
        if len(groups) < 2:
            continue
        texts = [group[0].sections[kind].get(name, missing) for group in groups.values()]
        if kind not in _TENSORS:
            yield RankDifference(kind, name, _ranks(groups), tuple(texts))
            continue
        checks = [Check.parse(text) for text in texts]
        values = tuple(format_number(check.rms) for check in checks)
        since = _since([group[0] for group in groups.values()]) if kind in ("weights", "shards") else ""
        found = RankDifference(kind, name, _ranks(groups), values, difference_of(checks), since)
        if kind == "running-statistics":
            found = _in_deviations(found, name, checks, having)
            before = statistics.get(found.name)
            if before is None or (before.difference or 0.0) < (found.difference or 0.0):
                statistics[found.name] = found
        else:
            yield found
    yield from statistics.values()


def _in_deviations(
    found: RankDifference, name: str, checks: list[Check], having: Sequence[Published]
) -> RankDifference:
    """Express the difference of running means in standard deviations, for the module."""
    module, difference = parent_name(name), found.difference or 0.0
    variance = having[0].sections["running-statistics"].get(f"{module}.running_var".lstrip("."))
    if name.rpartition(".")[2] == "running_mean" and variance is not None:
        deviation = Check.parse(variance).rms ** 0.5
        difference *= max(check.rms for check in checks) / (deviation or 1.0)
    return RankDifference(found.kind, module, found.ranks, found.values, difference)


def _since(members: Sequence[Published]) -> str:
    """Say when the weights of ranks began to differ, from samples of all weights before and after each step."""
    trails = [member.summary.trail for member in members]
    if len(set(map(len, trails))) > 1:
        return ""  # ranks made different numbers of steps
    for i, moment in enumerate(zip(*trails, strict=True)):
        if len(set(moment)) > 1:
            if i == 0:
                return "before the x-ray"
            if i % 2 == 0:
                return f"in step {i // 2}"
            is_end = i == len(trails[0]) - 1
            return "after the last step" if is_end else f"before step {i // 2 + 1}, outside of optimizer.step()"
    return ""


def _gradient_steps(members: Sequence[Published]) -> list[RankDifference]:
    """Find the steps for which ranks used different gradients of the same parameters: optimizers may share the work."""
    steps = [[entry.split() for entry in member.summary.step_gradients] for member in members]
    differing = []
    for i, moment in enumerate(zip(*steps, strict=False)):
        names, checks = zip(*moment, strict=True)
        if len(set(names)) == 1 and len(set(checks)) > 1:
            differing.append(i + 1)
    if not differing:
        return []
    groups = _groups(members, lambda member: " ".join(member.summary.step_gradients))
    since = f"in step {differing[0]}" + (" and later ones" if len(differing) > 1 else "")
    return [RankDifference("gradients", "", _ranks(groups), ("",) * len(groups), None, since)]


def _optimizer_differences(members: Sequence[Published]) -> Iterator[RankDifference]:
    """Compare the number of steps, and the hyperparameters of optimizers that made the same number of steps."""
    every = [member.summary.optimizers for member in members]
    counted = all(optimizer.number is not None for own in every for optimizer in own)
    groups = _groups(members, lambda member: _steps(member.summary.optimizers, counted))
    if len(groups) > 1:
        yield RankDifference("steps", "", _ranks(groups), tuple(groups))
    if len({tuple(optimizer.name for optimizer in own) for own in every}) > 1:
        groups = _groups(members, lambda m: " and ".join(optimizer.name for optimizer in m.summary.optimizers))
        if "" not in groups:  # otherwise only the number of steps differs
            yield RankDifference("hyperparameters", "the optimizer", _ranks(groups), tuple(groups))
        return
    for i, optimizer in enumerate(every[0]):
        for j, settings in enumerate(optimizer.groups):
            for name in settings:
                groups = _groups(members, lambda m: _setting(m, i, j, name))  # noqa: B023
                if len(groups) > 1:
                    where = f" of parameter group {j}" if len(optimizer.groups) > 1 else ""
                    label = f"{name} of {optimizer.name}{where}"
                    yield RankDifference("hyperparameters", label, _ranks(groups), tuple(groups))


def _steps(optimizers: Sequence[OptimizerSummary], counted: bool) -> str:
    parts = [f"{o.steps} of {o.name}{f' up to step {o.number}' if counted else ''}" for o in optimizers]
    return ", ".join(parts) or "0"


def _setting(member: Published, optimizer: int, group: int, name: str) -> str | None:
    groups = member.summary.optimizers[optimizer].groups
    return groups[group].get(name) if group < len(groups) else None


def _same_data(members: Sequence[Published]) -> Iterator[RankDifference]:
    """Find ranks that train on the same data in every pass."""
    trained = [m for m in members if m.summary.training and m.summary.backward_passes and any(m.summary.inputs)]
    length = min((len(member.summary.inputs) for member in trained), default=0)
    targets = min((len(member.summary.targets) for member in trained), default=0)
    groups = _groups(trained, lambda m: " ".join([*m.summary.inputs[:length], *m.summary.targets[:targets]]))
    same = tuple(ranks for ranks in _ranks(groups) if len(ranks) > 1)
    if same:
        yield RankDifference("data", "", same, tuple(f"{length}" for _ in same))
