"""The modules section of the HTML report: an expandable tree with statistics and details per module."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Self

from normscope.diagnostics.record import TensorStats, XrayRecord
from normscope.diagnostics.report.details import details_of
from normscope.diagnostics.report.module_tree import ModuleNode, build_tree, fold, is_unused
from normscope.diagnostics.report.signal_path import rms_of
from normscope.diagnostics.report.summary import format_shape
from normscope.render.formatting import format_count, format_number, one_line
from normscope.render.text_columns import LogBars

MAX_ROWS = 1_200
"""Above this, identical blocks are folded; rows beyond the limit are omitted, with a notice."""

MAX_DETAILS = 600


@dataclass(frozen=True)
class Bar:
    """A number with a bar below it: its text, whether some values are non-finite, and the length in percent."""

    text: str
    non_finite: bool
    length: str

    @classmethod
    def of(cls, value: float | None, stats: TensorStats | None, bars: LogBars | None = None) -> Self:
        length = 0.0 if bars is None else 100 * bars.share(value)
        return cls(format_number(value), stats is not None and stats.non_finite > 0, f"{length:.0f}%")


@dataclass
class ModuleRow:
    """A row and the rows below it.

    Args:
        id: HTML id.
        label, kind, size, parameters, flops: texts of the first columns.
        never_ran: whether nothing in it ran.
        forward, backward: rms of the output and of its gradient; None without one.
        is_open: whether the rows below are visible initially.
        mark: "named" if it has a finding, "holds" if a row below has one.
        details: label and text of each recorded detail.
        own_flops: FLOPs outside submodules.
        folded: which siblings are folded into this one, if any.
        children: the rows below.
    """

    id: str
    label: str
    kind: str
    never_ran: bool
    size: str
    parameters: str
    flops: str
    forward: Bar | None
    backward: Bar | None
    is_open: bool
    mark: str
    details: list[tuple[str, str]]
    own_flops: str
    folded: str
    children: list["ModuleRow"] = field(default_factory=list)


class ModuleTable:
    """The module table of a record.

    Args:
        record: the record.
        named: modules with findings; they stay visible.
    """

    def __init__(self, record: XrayRecord, named: Collection[str]) -> None:
        roots = build_tree(record)
        if len(record.modules) > MAX_ROWS:
            roots = [fold(root, named) for root in roots]
        shown = [node for root in roots for node in root.walk()]
        ids = {module.name: f"m{i}" for i, module in enumerate(record.modules)}
        self.omitted = max(0, len(shown) - MAX_ROWS)
        """Number of rows beyond the limit."""
        self.ids = {node.module.name: ids[node.module.name] for node in shown[:MAX_ROWS]}
        """HTML id of each module's row."""
        self._named = named
        self._detailed = {node.module.name for node in shown[:MAX_DETAILS]} | set(named)
        self._forward = LogBars(rms_of(node.module.output) for node in shown)
        self._backward = LogBars(rms_of(node.module.gradient) for node in shown)
        self.rows = [self._row(root, first=True) for root in roots if root.module.name in self.ids]

    def _row(self, node: ModuleNode, *, first: bool) -> ModuleRow:
        module = node.module
        inner = {inside.module.name for child in node.children for inside in child.walk()}
        kind = "" if module.is_function or module.kind == node.label else one_line(module.kind)
        row = ModuleRow(
            id=self.ids[module.name],
            label=one_line(node.label),
            kind=kind,
            never_ran=is_unused(node),
            size=_size(node),
            parameters=format_count(node.parameters) if node.parameters else "",
            flops=format_count(module.flops) if module.flops else "",
            forward=_bar(module.output, self._forward),
            backward=_bar(module.gradient, self._backward),
            is_open=bool(node.children) and first,
            mark="named" if module.name in self._named else "holds" if inner & set(self._named) else "",
            details=details_of(module) if module.name in self._detailed and _has_more(node) else [],
            own_flops=format_count(node.own_flops) if node.own_flops else "",
            folded=_folded([one_line(other.label) for other in node.folded], one_line(node.label)),
        )
        before = None
        for child in node.children:
            if child.module.name in self.ids:
                row.children.append(self._row(child, first=child.module.kind != before or not child.children))
            before = child.module.kind
        return row


def _bar(stats: TensorStats | None, bars: LogBars) -> Bar | None:
    return None if stats is None else Bar.of(rms_of(stats), stats, bars)


def _has_more(node: ModuleNode) -> bool:
    """Whether a module has details beyond its row; a plain container has none."""
    module = node.module
    special = (module.norm, module.attention, module.units, module.joins, module.parameters, module.produced_non_finite)
    return not node.children or any(special)


def _size(node: ModuleNode) -> str:
    module = node.module
    if not module.output_shapes:
        return "" if module.alias_of is None else f"= {module.alias_of}"
    return ", ".join(format_shape(shape) for shape in module.output_shapes if shape) or "scalar"


def _folded(names: Sequence[str], label: str) -> str:
    if not names:
        return ""
    words = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
    return f"{len(names):,} more with the same structure as {label}: {words}"
