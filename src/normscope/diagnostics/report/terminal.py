"""Render an x-ray as text: findings, signal by depth, modules, notices, totals."""

import sys
from collections.abc import Collection, Iterator, Sequence
from io import StringIO

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from normscope.diagnostics.findings.finding import SEVERITIES, Finding
from normscope.diagnostics.record import XrayRecord
from normscope.diagnostics.report import summary
from normscope.diagnostics.report.module_tree import ModuleNode, build_tree, fold
from normscope.diagnostics.report.ranks import COLUMNS, describe_ranks, rank_rows
from normscope.diagnostics.report.signal_path import SignalPoint, point_of, rms_of, signal_path, subsample
from normscope.diagnostics.stats.tensors import TensorStats
from normscope.render import text_columns
from normscope.render.console import SafeConsole
from normscope.render.formatting import format_count, format_number, one_line
from normscope.render.sparkline import sparkline
from normscope.render.text_columns import UNICODE, Glyphs, LogBars, fit_left, fit_right, glyphs_for, styled, wrap

MIN_WIDTH = 60
"""Lines are at least this wide, also in narrower terminals: the numbers need most of it."""

MAX_WIDTH = 120
MAX_POINTS = 40
MAX_RANKS = 16
MAX_SPARKS = 40
_COLORS = {"error": "bold red", "warning": "yellow", "note": "cyan"}
_FORWARD, _BACKWARD = "blue", "magenta"


def print_record(record: XrayRecord, findings: Sequence[Finding], *, tree: bool = True) -> None:
    """Print an x-ray, fitted to the width, colors and encoding of the terminal."""
    width, glyphs = terminal_width(), glyphs_for(sys.stdout.encoding)
    print_text(render_rich(record, findings, width=width, glyphs=glyphs, tree=tree))


def terminal_width() -> int:
    return max(MIN_WIDTH, min(SafeConsole().width, MAX_WIDTH))


def print_text(text: Text) -> None:
    """Print with colors on a terminal and as plain text elsewhere."""
    if sys.stdout.isatty():
        SafeConsole(highlight=False).print(text, soft_wrap=True, end="")
    else:
        print(text.plain, end="")


def render_text(
    record: XrayRecord,
    findings: Sequence[Finding],
    *,
    width: int = 80,
    color: bool = False,
    encoding: str = "utf-8",
    tree: bool = True,
) -> str:
    """Render an x-ray as text.

    Args:
        record: the record.
        findings: its findings, from `find`.
        width: line width in terminal cells.
        color: add ANSI color codes.
        encoding: encoding of the terminal; without box-drawing characters, ASCII is used.
        tree: also show the signal by depth, and every module.
    """
    drawn = render_rich(record, findings, width=width, glyphs=glyphs_for(encoding), tree=tree)
    if color:
        file = StringIO()
        console = Console(file=file, force_terminal=True, color_system="standard", width=10_000, legacy_windows=False)
        console.print(drawn, soft_wrap=True, end="")
        text = file.getvalue()
    else:
        text = drawn.plain
    try:
        return text.encode(encoding, "replace").decode(encoding)
    except LookupError:
        return text.encode("ascii", "replace").decode()


def render_rich(
    record: XrayRecord,
    findings: Sequence[Finding],
    *,
    width: int = 80,
    glyphs: Glyphs = UNICODE,
    tree: bool = True,
) -> Text:
    """Render for a rich console, which decides on colors. No line is wider than `width`."""
    width = max(width, MIN_WIDTH)
    parts = (_findings, _loss, _ranks, *((_depth, _modules) if tree else ()))
    body = [part(record, findings, width, glyphs) for part in parts]
    return text_columns.join_sections([_head(record, findings, width), *body, _foot(record, width)])


def _head(record: XrayRecord, findings: Sequence[Finding], width: int) -> Iterator[Text]:
    yield from styled(f"X-ray of {record.model}", "bold", width)
    yield from styled(summary.describe_passes(record), "dim", width)
    yield from styled(summary.verdict(record, findings), "", width)


def _findings(_: XrayRecord, findings: Sequence[Finding], width: int, glyphs: Glyphs) -> Iterator[Text]:
    for number, kind in enumerate(summary.group_by_kind(findings)):
        if number:
            yield Text()
        yield from _finding(kind[0], [other.module for other in kind[1:]], width, glyphs)


def _finding(finding: Finding, others: Sequence[str], width: int, glyphs: Glyphs) -> Iterator[Text]:
    place = SEVERITIES.index(finding.severity) if finding.severity in SEVERITIES else 2
    head = f"{glyphs.marks[place]} {one_line(finding.severity).upper()}"
    style = _COLORS.get(finding.severity, "")
    for i, line in enumerate(wrap(f"{head} {finding.title}", width)):
        text = Text(line, "bold")
        if i == 0:
            text.stylize(style, 0, len(head))
        yield text
    yield from _paragraph("in", finding.module or "the whole model", width)
    if others:
        yield from _paragraph("also", ", ".join(name or "the whole model" for name in others), width)
    yield from _paragraph("data", ", ".join(map(" ".join, summary.format_evidence(finding))), width)
    yield from _paragraph("why", finding.why, width)
    yield from _paragraph("fix", finding.fix, width)


def _paragraph(name: str, words: str, width: int) -> Iterator[Text]:
    """A labeled paragraph. Line breaks in the text, such as those of code, and their indentation are kept."""
    lines = []
    for own in words.split("\n"):
        indent = " " * (len(own) - len(own.lstrip(" ")))
        lines += [indent + line for line in wrap(own.strip(), width - 7 - len(indent))]
    for i, line in enumerate(lines):
        yield Text.assemble((f"  {name if i == 0 else '':<5}", "dim"), line)


def _loss(record: XrayRecord, _: Sequence[Finding], width: int, glyphs: Glyphs) -> Iterator[Text]:
    curve = record.loss_curve
    if len(curve) < summary.MIN_LOSSES:
        return
    drawn = sparkline(curve, MAX_SPARKS)[0] if glyphs is UNICODE else ""
    first, last = (format_number(value) for value in (curve[0], curve[-1]))
    extent = f"(the first {len(curve):,})" if record.is_loss_curve_cut else f"over {len(curve):,} values"
    yield Text.assemble(("Loss ", "bold"), (drawn, _FORWARD), f" {first} to {last} {extent}")


def _ranks(record: XrayRecord, _: Sequence[Finding], width: int, glyphs: Glyphs) -> Iterator[Text]:
    if record.ranks is None:
        return
    yield from styled("Ranks", "bold", width)
    yield from styled(one_line(describe_ranks(record.ranks)), "", width)
    rows = rank_rows(record.ranks)
    for i, cells in enumerate([COLUMNS, *rows[:MAX_RANKS]]):
        yield Text(" ".join(fit_right(cell, 8) for cell in cells), "dim" if i == 0 else "")
    if len(rows) > MAX_RANKS:
        yield Text(f"({MAX_RANKS} of {len(rows)} ranks)", "dim")


def _depth(record: XrayRecord, findings: Sequence[Finding], width: int, glyphs: Glyphs) -> Iterator[Text]:
    everything = signal_path(record)
    names = {finding.module for finding in findings if finding.module}
    if len(everything) < 2:
        return
    found = [point_of(everything, module.name, module.order or 0) for module in record.ran if module.name in names]
    points = subsample(everything, MAX_POINTS, found)
    joined = any(point.branch for point in points)
    room = width - 21 - (10 if joined else 0)  # left over by the numbers and spaces
    longest = max(cell_len(_place(point)) for point in points)
    bar = min(16, max(6, (room - longest) // 2))
    place = min(longest, room - 2 * bar)
    forward = LogBars([point.rms for point in points], bar, glyphs)
    backward = LogBars([point.gradient for point in points], bar, glyphs)
    yield from styled("Signal by depth (rms, bars on a log scale)", "bold", width)
    if len(points) < len(everything):
        yield Text(f"({len(points)} of {len(everything):,} points)", "dim")
    head = f"{'':{place}} {'forward':>8} {'':{bar}}  {'gradient':>8} {'':{bar}}"
    yield Text(head + ("    branch" if joined else ""), "dim")
    for point in points:
        yield Text.assemble(
            fit_left(_place(point), place, glyphs.cut),
            f" {format_number(point.rms):>8}{_non_finite_mark(point.non_finite)}",
            (forward.draw(point.rms), _FORWARD),
            f"  {format_number(point.gradient):>8}{_non_finite_mark(point.non_finite_gradient)}",
            (backward.draw(point.gradient), _BACKWARD),
            f" {_ratio(point):>9}" if joined else "",
        )
    if joined:
        yield from styled("branch: rms of the residual branch relative to the stream it is added to", "dim", width)
    if any(point.non_finite or point.non_finite_gradient for point in points):
        yield from styled("!: some values are NaN or Inf", "dim", width)


def _place(point: SignalPoint) -> str:
    title = point.title if point.branch or not point.label.isdigit() else f"{point.title} {point.kind}"
    return one_line(title)


def _ratio(point: SignalPoint) -> str:
    return "" if point.branch is None else format_number(point.branch.ratio)


def _non_finite_mark(non_finite: bool) -> str:
    return "!" if non_finite else " "


def _modules(record: XrayRecord, findings: Sequence[Finding], width: int, glyphs: Glyphs) -> Iterator[Text]:
    named = {finding.module for finding in findings if finding.module}
    yield Text(_row(("Modules", "output", "param.", "FLOPs", "rms ", "gradient "), width, glyphs), "bold")
    for root in build_tree(record):
        yield from _branch(fold(root, named), named, "", "", width, glyphs)
    if named:
        yield Text("<: has a finding", "dim")


def _branch(
    node: ModuleNode, named: Collection[str], lead: str, below: str, width: int, glyphs: Glyphs
) -> Iterator[Text]:
    module, room = node.module, _columns(width)[0]
    counts = [format_count(count) if count else "" for count in (node.parameters, module.flops)]
    name = lead + _name(node, module.name in named, room - len(lead))
    row = _row((name, _size(node), *counts, _signal(module.output), _signal(module.gradient)), width, glyphs)
    if module.alias_of is not None and not module.output_shapes:  # it has no numbers, so the size may use their columns
        row = f"{fit_left(row, room, '')} {fit_left(_size(node), width - room - 1, glyphs.cut)}"
    text = Text(row)
    text.stylize("dim", 0, len(lead))
    yield text
    for i, child in enumerate(node.children):
        last = i == len(node.children) - 1 and not node.own_flops
        fork, under = (glyphs.corner, glyphs.gap) if last else (glyphs.fork, glyphs.pipe)
        yield from _branch(child, named, below + fork, below + under, width, glyphs)
    if node.own_flops:
        cells = (f"{below}{glyphs.corner}(own ops)", "", "", format_count(node.own_flops), "", "")
        text = Text(_row(cells, width, glyphs))
        text.stylize("dim", 0, len(below + glyphs.corner))
        yield text


def _name(node: ModuleNode, named: bool, room: int) -> str:
    """Label of a row: the name, and the class unless it is redundant or does not fit."""
    name, more = one_line(node.label), [f"x {len(node.folded) + 1}"] if node.folded else []
    more += ["<"] if named else []
    both = " ".join([name, node.kind, *more])
    return " ".join([name, *more]) if not node.kind or cell_len(both) > room else both


def _size(node: ModuleNode) -> str:
    module = node.module
    if module.output_shapes:
        return "x".join(map(str, next((shape for shape in module.output_shapes if shape), ()))) or "scalar"
    if module.alias_of is not None:
        return f"= {one_line(module.alias_of)}"
    return "never ran" if node.is_unused else ""


def _signal(signal: TensorStats | None) -> str:
    return "" if signal is None else f"{format_number(rms_of(signal))}{_non_finite_mark(signal.non_finite > 0)}"


def _columns(width: int) -> tuple[int, int]:
    """Widths of the name and shape columns."""
    room = width - 35
    return room - min(18, room // 3), min(18, room // 3)


def _row(cells: Sequence[str], width: int, glyphs: Glyphs) -> str:
    """Name and size on the left, parameters, FLOPs, rms and gradient on the right."""
    words = [fit_left(cell, columns, glyphs.cut) for cell, columns in zip(cells[:2], _columns(width), strict=True)]
    return " ".join([*words, *map(fit_right, cells[2:], (6, 6, 9, 9))])


def _foot(record: XrayRecord, width: int) -> Iterator[Text]:
    never = summary.unused_names(record)
    lines = [f"Never ran: {', '.join(never)}"] if never else []
    lines += [f"Notice: {notice}" for notice in record.notices]
    for words in (*lines, "; ".join(f"{value} {name}" for name, value in summary.key_facts(record))):
        yield from styled(words, "", width)
    yield from styled(summary.versions(record), "dim", width)
