"""The way of the signal: where it is looked at, from the first module to the last.

In a model with residual additions these are the places where a branch joins the stream; elsewhere, the innermost
modules and functions in the order in which they run.
"""

import math
import re
from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from normscope.diagnostics.record import ModuleRecord, ResidualJoin, TensorStats, XrayRecord


@dataclass(frozen=True)
class Branch:
    """What is added to the stream at a station.

    Args:
        label: the branch's name within its block.
        rms: its size.
        ratio: its size over the stream's, as it was before.
    """

    label: str
    rms: float
    ratio: float | None


@dataclass(frozen=True)
class Station:
    """A place on the way.

    Args:
        name: the module whose figures it shows; of a join the one that made the branch.
        block, label: what the place is called: the block that it lies in, and its name there.
        kind: the module's class.
        order: when it was passed.
        rms: of the signal as it leaves; nan if it has no finite number.
        gradient: the rms of the loss's gradient there; None if none came.
        unreal, unreal_gradient: whether some of these numbers were infinite, or not numbers.
        branch: what was added there; None if nothing was.
    """

    name: str
    block: str
    label: str
    kind: str
    order: float
    rms: float | None
    gradient: float | None
    non_finite: bool = False
    non_finite_gradient: bool = False
    branch: Branch | None = None

    @property
    def title(self) -> str:
        place = f"{self.block}.{self.label}" if self.block else self.label
        return f"{self.block} + {self.branch.label}".strip() if self.branch else place


def stations_of(record: XrayRecord) -> list[Station]:
    """The stations of a record, in order."""
    modules = {module.name: module for module in record.modules}
    joins = sorted(_joins(record, modules), key=lambda found: found[0])
    stretches = _stretches(joins, modules)  # they follow each other
    ends = [end for _, end in stretches]
    found = [_at_join(owner, join, order, modules) for order, owner, join in joins]
    owners = {owner.name for _, owner, _ in joins}
    normalized = {join.post_norm for _, _, join in joins}
    for module in innermost(record):
        assert module.order is not None
        after = bisect_left(ends, float(module.order))
        in_a_branch = after < len(stretches) and stretches[after][0] < module.order
        if module.output is not None and not _passes_on(module) and (not in_a_branch or module.name in normalized):
            found.append(_at_module(module, owners))
    found.sort(key=lambda station: station.order)
    return [*found, *_end(record, found)]


def size_of(signal: TensorStats | None) -> float | None:
    """The rms; nan if there are numbers and none of them is finite."""
    if signal is None:
        return None
    return math.nan if signal.non_finite > 0 and signal.count == 0 else signal.rms


def place_of(stations: Sequence[Station], order: float) -> float:
    """Where a module that ran at some time stands among the stations: at one of them, or half-way between two.

    >>> way = [Station(name, "", name, "Linear", order, 1.0, None) for name, order in (("a", 3), ("b", 6))]
    >>> [place_of(way, order) for order in (1, 3, 4, 6, 9)]
    [-0.5, 0.0, 0.5, 1.0, 1.5]
    """
    orders = [station.order for station in stations]
    after = bisect_left(orders, order)
    return float(after) if after < len(orders) and orders[after] == order else after - 0.5


def few(stations: Sequence[Station], most: int, keep: Sequence[float] = ()) -> list[Station]:
    """At most so many of the stations, evenly chosen; the first and the last, and those at `keep`, if they fit."""
    if len(stations) <= most:
        return list(stations)
    wanted = {0, len(stations) - 1}
    wanted |= set(sorted({min(max(0, round(place)), len(stations) - 1) for place in keep})[: most // 2])
    chosen = {round(i * (len(stations) - 1) / (most - len(wanted) - 1)) for i in range(most - len(wanted))}
    return [stations[i] for i in sorted(chosen | wanted)]


def innermost(record: XrayRecord) -> list[ModuleRecord]:
    """Those that ran and hold no other that did."""
    ran = record.ran
    outer = set()
    for module in ran:
        name = module.name
        while name:
            name = name.rpartition(".")[0]
            outer.add(name)
    return [module for module in ran if module.name not in outer]


def _joins(record: XrayRecord, modules: dict[str, ModuleRecord]) -> Iterator[tuple[float, ModuleRecord, ResidualJoin]]:
    """Each join, with the time at which it happened: after the branch was made."""
    for module in record.modules:
        for number, join in enumerate(module.joins):
            maker = modules.get(join.branch_source or "")
            last = module.order if maker is None or not join.branch_source else maker.order
            yield (last or 0) + 0.5 + number / 1000, module, join


def _stretches(
    joins: Sequence[tuple[float, ModuleRecord, ResidualJoin]], modules: dict[str, ModuleRecord]
) -> list[tuple[float, float]]:
    """From when to when the branches ran: what runs then is not on the stream."""
    stretches = []
    before = -1.0
    for order, owner, join in joins:
        source = modules.get(join.stream_source or "")
        start = source.order if source is not None and join.stream_source else owner.order
        stretches.append((max(before, start or 0), order))
        before = order
    return stretches


def _at_join(owner: ModuleRecord, join: ResidualJoin, order: float, modules: dict[str, ModuleRecord]) -> Station:
    maker = modules.get(join.branch_source or "", owner)
    named = maker
    while "dropout" in named.kind.lower() and named.fed_by and named.fed_by[0] in modules:
        named = modules[named.fed_by[0]]  # dropout is not what a branch is about
    inside = named.name.removeprefix(owner.name).lstrip(".") if named.name.startswith(owner.name) else named.name
    block, part = _block(owner.name)
    label = part or inside.split(".")[0] or "branch"
    return Station(
        name=maker.name,
        block=block,
        label=label,
        kind=owner.kind,
        order=order,
        rms=join.total,
        gradient=None if maker is owner else size_of(maker.gradient),
        non_finite=not math.isfinite(join.total) or _has_non_finite(maker.output),
        non_finite_gradient=_has_non_finite(maker.gradient),
        branch=Branch(label, join.branch, join.branch / join.stream if join.stream else None),
    )


def _end(record: XrayRecord, stations: Sequence[Station]) -> list[Station]:
    """The model's output, if no module made it and no join: a head that is tied to the embedding is a function."""
    root = next((module for module in record.ran if not module.name), None)
    if root is None or root.output is None or len(root.output_shapes) != 1 or not stations or root.joins:
        return []
    if any(module.output == root.output for module in record.modules if module is not root):
        return []
    last = max((module.order or 0) for module in record.ran) + 1.0
    end = _at_module(root, ())
    return [replace(end, block="", label="output", order=max(last, stations[-1].order + 1))]


def _block(owner: str) -> tuple[str, str]:
    """The block that adds to the stream, and the part of it that does so, if it leaves that to one.

    >>> _block("blocks.0"), _block("encoder.layer.0.attention.output"), _block("residual")
    (('blocks.0', ''), ('encoder.layer.0', 'attention.output'), ('residual', ''))
    """
    match = re.fullmatch(r"((?:.*\.)?\d+)\.(.+?)", owner)
    return (match[1], match[2]) if match else (owner, "")


def _at_module(module: ModuleRecord, owners: Collection[str]) -> Station:
    assert module.order is not None
    parent = block = module.name.rpartition(".")[0]
    while block and block not in owners:
        block = block.rpartition(".")[0]
    block = _block(block)[0] if block else parent
    label = module.name.removeprefix(f"{block}.")
    return Station(
        name=module.name,
        block=block,
        label=label or module.kind,
        kind=module.kind,
        order=module.order,
        rms=size_of(module.output),
        gradient=size_of(module.gradient),
        non_finite=_has_non_finite(module.output),
        non_finite_gradient=_has_non_finite(module.gradient),
    )


def _passes_on(module: ModuleRecord) -> bool:
    """Whether it gave what it was given, as dropout does when the model is not training."""
    same = module.input == module.output and module.input_shapes[:1] == module.output_shapes[:1]
    return same and module.norm is None and not module.parameters


def _has_non_finite(signal: TensorStats | None) -> bool:
    return signal is not None and signal.non_finite > 0
