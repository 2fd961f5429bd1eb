"""The modules section of the HTML report: an expandable tree with statistics and details per module."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from normscope.diagnostics.record import TensorStats, XrayRecord
from normscope.diagnostics.report.details import details_of
from normscope.diagnostics.report.module_tree import ModuleNode, build_tree, fold, is_unused
from normscope.diagnostics.report.signal_path import rms_of
from normscope.diagnostics.report.summary import format_shape
from normscope.diagnostics.report.text_columns import UNICODE, LogBars
from normscope.render.formatting import format_count, format_number, one_line
from normscope.render.html_page import html_text

MAX_ROWS = 1_200
"""Above this, identical blocks are folded; rows beyond the limit are omitted, with a notice."""

MAX_DETAILS = 600


@dataclass(frozen=True)
class _RowContext:
    """Shared settings of all rows."""

    rows: Mapping[str, str]
    named: Collection[str]
    forward: LogBars
    backward: LogBars


class ModuleTable:
    """The module table of a record.

    Args:
        record: the record.
        named: modules with findings; they stay visible.
    """

    def __init__(self, record: XrayRecord, named: Collection[str]) -> None:
        self._roots = build_tree(record)
        self._left_out = 0
        if len(record.modules) > MAX_ROWS:
            self._roots = [fold(root, named) for root in self._roots]
        shown = [node for root in self._roots for node in root.walk()]
        self._left_out = max(0, len(shown) - MAX_ROWS)
        ids = {module.name: f"m{i}" for i, module in enumerate(record.modules)}
        self.rows: dict[str, str] = {node.module.name: ids[node.module.name] for node in shown[:MAX_ROWS]}
        """HTML id of each module's row."""
        self._context = _RowContext(
            self.rows,
            named,
            LogBars([rms_of(node.module.output) for node in shown], 0, UNICODE),
            LogBars([rms_of(node.module.gradient) for node in shown], 0, UNICODE),
        )
        self._detailed = {node.module.name for node in shown[:MAX_DETAILS]} | set(named)

    def draw(self) -> list[str]:
        lines = [
            '<h2 id="modules">Modules</h2>',
            '<div class="modules"><div class="row head"><span>module</span><span>output</span><span>parameters</span>'
            "<span>FLOPs</span><span>forward rms</span><span>gradient rms</span></div>",
        ]
        for root in self._roots:
            lines += self._draw(root, 0, first=True)
        lines.append("</div>")
        if self._left_out:
            lines.append(f'<p class="faint">{self._left_out:,} more modules are in the record but not shown here.</p>')
        return lines

    def _draw(self, node: ModuleNode, depth: int, *, first: bool) -> Iterator[str]:
        name = node.module.name
        if name not in self.rows:
            return
        opened = " open" if node.children and first else ""
        mark = ' class="named"' if name in self._context.named else ' class="holds"' if self._holds_named(node) else ""
        lines = details_of(node.module) if name in self._detailed and _has_more(node) else []
        yield f'<details id="{self.rows[name]}"{opened}{mark}>'
        yield f'<summary class="row">{_cells(node, depth, self._context)}</summary>'
        if lines:
            pairs = "".join(f"<dt>{html_text(key)}</dt><dd>{html_text(words)}</dd>" for key, words in lines)
            known = f'<dl style="--d:{depth}">{pairs}</dl>'
            # The details of a row with children are collapsed, so that the children stay visible.
            own = f'<details class="own"><summary style="--d:{depth}">details</summary>{known}</details>'
            yield own if node.children else known
        before = None
        for child in node.children:
            yield from self._draw(child, depth + 1, first=child.module.kind != before or not child.children)
            before = child.module.kind
            if child.folded:
                yield _folded(child, depth + 1)
        if node.own_flops:
            cells = f"<span></span><span></span><span>{format_count(node.own_flops)}</span><span></span><span></span>"
            yield f'<div class="row"><span style="--d:{depth + 1}">outside submodules</span>{cells}</div>'
        yield "</details>"

    def _holds_named(self, node: ModuleNode) -> bool:
        return any(inner.module.name in self._context.named for child in node.children for inner in child.walk())


def _has_more(node: ModuleNode) -> bool:
    """Whether a module has details beyond its row; a plain container has none."""
    module = node.module
    special = (module.norm, module.attention, module.units, module.joins, module.parameters, module.produced_non_finite)
    return not node.children or any(special)


def _cells(node: ModuleNode, depth: int, context: _RowContext) -> str:
    module = node.module
    kind = "" if module.is_function or module.kind == node.label else f" {html_text(one_line(module.kind))}"
    size = ", ".join(format_shape(output) for output in module.output_shapes if output) or (
        "scalar" if module.output_shapes else ""
    )
    if not module.output_shapes and module.alias_of is not None:
        size = f"= {module.alias_of}"
    elif is_unused(node):
        kind += ", never ran"
    return (
        f'<span style="--d:{depth}"><b>{html_text(one_line(node.label))}</b>{kind}</span><span>{html_text(size)}</span>'
        f"<span>{format_count(node.parameters) if node.parameters else ''}</span>"
        f"<span>{format_count(module.flops) if module.flops else ''}</span>"
        f"{_bar(module.output, context.forward, 'a')}{_bar(module.gradient, context.backward, 'b')}"
    )


def _bar(signal: TensorStats | None, bars: LogBars, color: str) -> str:
    if signal is None:
        return "<span></span>"
    value = rms_of(signal)
    mark = ' <em title="some values are NaN or Inf">!</em>' if signal.non_finite > 0 else ""
    return f'<span class="{color}" style="--w:{100 * bars.share(value):.0f}%">{format_number(value)}{mark}</span>'


def _folded(node: ModuleNode, depth: int) -> str:
    names: Sequence[str] = [one_line(other.label) for other in node.folded]
    words = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
    return (
        f'<div class="row"><span style="--d:{depth}">{len(names):,} more with the same structure as '
        f"{html_text(one_line(node.label))}: {html_text(words)}</span></div>"
    )
