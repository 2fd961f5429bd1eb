"""Stacks: layers or blocks of one kind that the signal goes through one after the other, and how it fares there."""

import itertools
import math
from collections import defaultdict
from dataclasses import dataclass

from normscope.diagnostics.findings.record_view import View, linear_weight, parent, role
from normscope.diagnostics.record import ModuleRecord

LEAST_LAYERS = 4
"""A trend needs so many layers: with fewer, one odd layer looks like one."""


@dataclass(frozen=True)
class Trend:
    """How a figure goes from the first to the last layer of a stack.

    Args:
        total: the last over the first.
        steady: the same without its largest single step: what is left is the work of many layers.
        layer: the factor of a layer, on average.
    """

    total: float
    steady: float
    layer: float


def stacks(view: View) -> list[list[ModuleRecord]]:
    """All stacks, in the order of execution: numbered modules of one class, and the linear layers of one parent."""
    groups: dict[tuple[str, str], list[ModuleRecord]] = defaultdict(list)
    linear: dict[str, list[ModuleRecord]] = defaultdict(list)
    for module in view.ran:
        if module.is_function:
            continue
        if role(module.name).endswith("*"):
            groups[role(module.name), module.kind].append(module)
        if linear_weight(module) is not None:
            linear[parent(module.name)].append(module)
    found = [group for group in groups.values() if len(group) >= LEAST_LAYERS]
    known = {tuple(module.name for module in group) for group in found}
    for name, group in linear.items():
        names = tuple(module.name for module in group)
        if len(group) >= LEAST_LAYERS and names not in known and _is_chain(view.modules.get(name), group):
            found.append(group)
    return [group for group in found if not _side_by_side(group)]


def _is_chain(holder: ModuleRecord | None, group: list[ModuleRecord]) -> bool:
    """Whether siblings of different names follow each other; queries, keys and values, for one, do not."""
    return holder is None or (not holder.joins and holder.attention is None and len({m.kind for m in group}) <= 2)


def _side_by_side(group: list[ModuleRecord]) -> bool:
    """Whether several of them read the same output: they are heads, or experts, and no stack."""
    sources = [module.fed_by for module in group if module.fed_by]
    return len(set(sources)) < len(sources)


def trend(values: list[float]) -> Trend | None:
    """The trend of sizes in the order of execution; those that are zero or not finite say nothing and are left out.

    >>> trend([1.0, 0.1, 0.01, 0.001]).layer
    0.1
    """
    logs = [math.log(value) for value in values if 0 < value < math.inf]
    if len(logs) < LEAST_LAYERS:
        return None
    steps = [b - a for a, b in itertools.pairwise(logs)]
    total = sum(steps)
    largest = max(steps) if total > 0 else min(steps)
    return Trend(_exp(total), _exp(total - largest), round(_exp(total / len(steps)), 12))


def _exp(x: float) -> float:
    """e^x, that stays a number."""
    return math.exp(max(-700.0, min(700.0, x)))
