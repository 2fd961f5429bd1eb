"""The points along a model at which reports show the signal, in execution order.

In a model with residual connections these are the additions to the stream; elsewhere, the innermost modules and
functions.
"""

import math
import re
from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from normscope.diagnostics.module_names import is_inside, outer_names
from normscope.diagnostics.record import ModuleRecord, XrayRecord
from normscope.diagnostics.stats.tensors import ResidualJoin, TensorStats


@dataclass(frozen=True)
class BranchSignal:
    """A branch that is added to the residual stream.

    Args:
        label: name of the branch within its block.
        rms: rms of the branch.
        ratio: its rms over that of the stream before the addition.
    """

    label: str
    rms: float
    ratio: float | None


@dataclass(frozen=True)
class SignalPoint:
    """A point at which the signal is shown.

    Args:
        name: the module whose statistics are shown; for an addition, the module that produced the branch.
        block, label: the block it is in, and its name within the block.
        kind: class of the module.
        order: execution order.
        rms: rms of the signal after this point; nan without finite values.
        gradient: rms of the gradient here; None without one.
        non_finite, non_finite_gradient: whether some values were NaN or Inf.
        branch: the branch that is added here, if any.
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
    branch: BranchSignal | None = None

    @property
    def title(self) -> str:
        place = f"{self.block}.{self.label}" if self.block else self.label
        return f"{self.block} + {self.branch.label}".strip() if self.branch else place


def signal_path(record: XrayRecord) -> list[SignalPoint]:
    """All points of a record, in execution order."""
    modules = {module.name: module for module in record.modules}
    joins = sorted(_joins(record, modules), key=lambda found: found[0])
    spans = _spans(joins, modules)  # consecutive
    ends = [end for _, end in spans]
    found = [_at_join(owner, join, order, modules) for order, owner, join in joins]
    owners = {owner.name for _, owner, _ in joins}
    normalized = {join.post_norm for _, _, join in joins}
    for module in innermost(record):
        order = float(module.order or 0)
        after = bisect_left(ends, order)
        in_branch = after < len(spans) and spans[after][0] < order
        if module.output is not None and not _is_identity(module) and (not in_branch or module.name in normalized):
            found.append(_at_module(module, owners))
    found.sort(key=lambda point: point.order)
    return [*found, *_end(record, found)]


def rms_of(signal: TensorStats | None) -> float | None:
    """The rms; nan if there are values but none is finite."""
    if signal is None:
        return None
    return math.nan if signal.non_finite > 0 and signal.count == 0 else signal.rms


def position_of(points: Sequence[SignalPoint], order: float) -> float:
    """Index of a module among the points: that of a point, or half-way between two.

    >>> way = [SignalPoint(name, "", name, "Linear", order, 1.0, None) for name, order in (("a", 3), ("b", 6))]
    >>> [position_of(way, order) for order in (1, 3, 4, 6, 9)]
    [-0.5, 0.0, 0.5, 1.0, 1.5]
    """
    orders = [point.order for point in points]
    after = bisect_left(orders, order)
    return float(after) if after < len(orders) and orders[after] == order else after - 0.5


def point_of(points: Sequence[SignalPoint], name: str, order: float) -> int:
    """Index of the point that shows what a module does.

    A module that contains points is shown at its last one, where its output is. One within a branch is shown where the
    branch is added, and any other at the next point.

    >>> way = [("embedding", 1), ("blocks.0.attention.out", 4.5), ("blocks.0.mlp.down", 7.5), ("head", 9)]
    >>> points = [SignalPoint(name, "", name, "Linear", order, 1.0, None) for name, order in way]
    >>> modules = {"": 0, "blocks.0": 2, "blocks.0.attention.q": 3, "blocks.0.attention.dropout": 5, "blocks.0.mlp": 6}
    >>> [points[point_of(points, name, order)].name for name, order in modules.items()]
    ['head', 'blocks.0.mlp.down', 'blocks.0.attention.out', 'blocks.0.attention.out', 'blocks.0.mlp.down']
    """
    inside = [i for i, point in enumerate(points) if is_inside(point.name, name)]
    if inside:
        return inside[-1]
    for outer in outer_names(name):
        around = [i for i, point in enumerate(points) if is_inside(point.name, outer)]
        if around:
            return next((i for i in around if points[i].order >= order), around[-1])
    return 0


def subsample(points: Sequence[SignalPoint], most: int, keep: Sequence[int] = ()) -> list[SignalPoint]:
    """Up to `most` evenly spaced points, including the first, the last and, as far as they fit, those at `keep`."""
    if len(points) <= most:
        return list(points)
    wanted = {0, len(points) - 1}
    wanted |= set(sorted(set(keep))[: most // 2])
    chosen = {round(i * (len(points) - 1) / (most - len(wanted) - 1)) for i in range(most - len(wanted))}
    return [points[i] for i in sorted(chosen | wanted)]


def innermost(record: XrayRecord) -> list[ModuleRecord]:
    """Modules that ran and contain no other module that ran."""
    outer = {name for module in record.ran for name in outer_names(module.name)}
    return [module for module in record.ran if module.name not in outer]


def _joins(record: XrayRecord, modules: dict[str, ModuleRecord]) -> Iterator[tuple[float, ModuleRecord, ResidualJoin]]:
    """Each residual addition with its time: after its branch was computed."""
    for module in record.modules:
        for number, join in enumerate(module.joins):
            maker = modules.get(join.branch_source or "")
            last = module.order if maker is None or not join.branch_source else maker.order
            yield (last or 0) + 0.5 + number / 1000, module, join


def _spans(
    joins: Sequence[tuple[float, ModuleRecord, ResidualJoin]], modules: dict[str, ModuleRecord]
) -> list[tuple[float, float]]:
    """Start and end of each branch: modules that run in between are not on the stream."""
    spans = []
    before = -1.0
    for order, owner, join in joins:
        source = modules.get(join.stream_source or "")
        start = source.order if source is not None and join.stream_source else owner.order
        spans.append((max(before, start or 0), order))
        before = order
    return spans


def _at_join(owner: ModuleRecord, join: ResidualJoin, order: float, modules: dict[str, ModuleRecord]) -> SignalPoint:
    maker = modules.get(join.branch_source or "", owner)
    named = maker
    while "dropout" in named.kind.lower() and named.fed_by and named.fed_by[0] in modules:
        named = modules[named.fed_by[0]]  # name the branch after its last layer before dropout
    inside = named.name.removeprefix(owner.name).lstrip(".") if named.name.startswith(owner.name) else named.name
    block, part = _block(owner.name)
    label = part or inside.split(".")[0] or "branch"
    return SignalPoint(
        name=maker.name,
        block=block,
        label=label,
        kind=owner.kind,
        order=order,
        rms=join.total,
        gradient=None if maker is owner else rms_of(maker.gradient),
        non_finite=not math.isfinite(join.total) or _has_non_finite(maker.output),
        non_finite_gradient=_has_non_finite(maker.gradient),
        branch=BranchSignal(label, join.branch, join.branch / join.stream if join.stream else None),
    )


def _end(record: XrayRecord, points: Sequence[SignalPoint]) -> list[SignalPoint]:
    """The model's output, if it is not the output of a module or addition: a tied head is a function call."""
    root = next((module for module in record.ran if not module.name), None)
    if root is None or root.output is None or len(root.output_shapes) != 1 or not points or root.joins:
        return []
    if any(module.output == root.output for module in record.modules if module is not root):
        return []
    last = max((module.order or 0) for module in record.ran) + 1.0
    end = _at_module(root, ())
    return [replace(end, block="", label="output", order=max(last, points[-1].order + 1))]


def _block(owner: str) -> tuple[str, str]:
    """Split the name of the module that performs an addition into its block and the rest.

    >>> _block("blocks.0"), _block("encoder.layer.0.attention.output"), _block("residual")
    (('blocks.0', ''), ('encoder.layer.0', 'attention.output'), ('residual', ''))
    """
    match = re.fullmatch(r"((?:.*\.)?\d+)\.(.+?)", owner)
    return (match[1], match[2]) if match else (owner, "")


def _at_module(module: ModuleRecord, owners: Collection[str]) -> SignalPoint:
    around = [name for name in outer_names(module.name) if name]
    owner = next((name for name in around if name in owners), "")
    block = _block(owner)[0] if owner else "".join(around[:1])
    label = module.name.removeprefix(f"{block}.")
    return SignalPoint(
        name=module.name,
        block=block,
        label=label or module.kind,
        kind=module.kind,
        order=module.order or 0,
        rms=rms_of(module.output),
        gradient=rms_of(module.gradient),
        non_finite=_has_non_finite(module.output),
        non_finite_gradient=_has_non_finite(module.gradient),
    )


def _is_identity(module: ModuleRecord) -> bool:
    """Whether its output equals its input, as for dropout in eval mode."""
    same = module.input == module.output and module.input_shapes[:1] == module.output_shapes[:1]
    return same and module.norm is None and not module.parameters


def _has_non_finite(signal: TensorStats | None) -> bool:
    return signal is not None and signal.non_finite > 0
