"""Stacks of similar layers that the signal passes in sequence, and how its scale changes along them."""

import itertools
import math
from collections import defaultdict
from dataclasses import dataclass

from normscope.diagnostics.findings.record_view import RecordView, linear_weight, name_pattern, parent_name
from normscope.diagnostics.record import ModuleRecord

MIN_LAYERS = 4
"""With fewer layers, one odd layer looks like a trend."""


@dataclass(frozen=True)
class Trend:
    """How a value changes from the first to the last layer of a stack.

    Args:
        total: last over first.
        steady: the same without the largest single step: the part that many layers contribute to.
        layer: geometric mean of the factor per layer.
    """

    total: float
    steady: float
    layer: float


def stacks(view: RecordView) -> list[list[ModuleRecord]]:
    """All stacks in execution order: numbered modules of one class, and the linear layers of one parent."""
    groups: dict[tuple[str, str], list[ModuleRecord]] = defaultdict(list)
    linear: dict[str, list[ModuleRecord]] = defaultdict(list)
    for module in view.ran:
        if module.is_function:
            continue
        if name_pattern(module.name).endswith("*"):
            groups[name_pattern(module.name), module.kind].append(module)
        if linear_weight(module) is not None:
            linear[parent_name(module.name)].append(module)
    found = [group for group in groups.values() if len(group) >= MIN_LAYERS]
    known = {tuple(module.name for module in group) for group in found}
    for name, group in linear.items():
        names = tuple(module.name for module in group)
        if len(group) >= MIN_LAYERS and names not in known and _is_chain(view.modules.get(name), group):
            found.append(group)
    return [group for group in found if not _is_parallel(group)]


def _is_chain(parent: ModuleRecord | None, group: list[ModuleRecord]) -> bool:
    """Whether siblings with different names run in sequence; query, key and value projections do not."""
    return parent is None or (not parent.joins and parent.attention is None and len({m.kind for m in group}) <= 2)


def _is_parallel(group: list[ModuleRecord]) -> bool:
    """Whether several of them read the same output: heads or experts, not a stack."""
    sources = [module.fed_by for module in group if module.fed_by]
    return len(set(sources)) < len(sources)


def trend(values: list[float]) -> Trend | None:
    """The trend of values in execution order, ignoring zeros and non-finite values; None if there are too few.

    >>> trend([1.0, 0.1, 0.01, 0.001]).layer
    0.1
    """
    logs = [math.log(value) for value in values if 0 < value < math.inf]
    if len(logs) < MIN_LAYERS:
        return None
    steps = [b - a for a, b in itertools.pairwise(logs)]
    total = sum(steps)
    largest = max(steps) if total > 0 else min(steps)
    return Trend(_exp(total), _exp(total - largest), round(_exp(total / len(steps)), 12))


def _exp(x: float) -> float:
    """e^x, clamped to avoid overflow."""
    return math.exp(max(-700.0, min(700.0, x)))
