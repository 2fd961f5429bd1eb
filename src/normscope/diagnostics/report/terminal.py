"""An x-ray as text: the findings, the signal by depth, the modules, what could not be seen, the totals."""

from collections.abc import Collection, Iterator, Sequence
from io import StringIO

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from normscope.diagnostics.findings.base import SEVERITIES, Finding
from normscope.diagnostics.record import TensorStats, XrayRecord
from normscope.diagnostics.report.module_tree import Node, fold, is_idle, tree_of
from normscope.diagnostics.report.signal_path import Station, few, place_of, size_of, stations_of
from normscope.diagnostics.report.summary import by_kind, evidence, facts, idle, verdict, what_ran
from normscope.diagnostics.report.text_columns import (
    UNICODE,
    Bars,
    Glyphs,
    fit_left,
    fit_right,
    glyphs_for,
    with_gaps,
    wrap,
)
from normscope.render.formatting import format_count, format_number, one_line

NARROWEST = 60
"""What has fewer columns than this gets lines of this width: the figures take most of it."""

MOST_STATIONS = 40
_COLORS = {"error": "bold red", "warning": "yellow", "note": "cyan"}
_FORWARD, _BACKWARD = "blue", "magenta"


def render_text(
    record: XrayRecord,
    findings: Sequence[Finding],
    *,
    width: int = 80,
    color: bool = False,
    encoding: str = "utf-8",
) -> str:
    """The whole x-ray as text.

    Args:
        record: what was seen.
        findings: what is wrong, as `find` gives it.
        width: of a line, in cells.
        colour: add a terminal's codes for colours; the words say everything without them.
        encoding: of the terminal; if it has no characters for drawing, plain ones are used.
    """
    drawn = render_rich(record, findings, width=width, glyphs=glyphs_for(encoding))
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


def render_rich(record: XrayRecord, findings: Sequence[Finding], *, width: int = 80, glyphs: Glyphs = UNICODE) -> Text:
    """The same for a console of rich, which knows best whether there are colours. No line is wider than `width`."""
    width = max(width, NARROWEST)
    parts = [
        _head(record, findings, width),
        _findings(findings, width, glyphs),
        _depth(record, findings, width, glyphs),
        _modules(record, findings, width, glyphs),
        _foot(record, width),
    ]
    return with_gaps(parts)


def _head(record: XrayRecord, findings: Sequence[Finding], width: int) -> Iterator[Text]:
    yield from _lines(f"X-ray of {record.model}", "bold", width)
    yield from _lines(what_ran(record), "dim", width)
    yield from _lines(verdict(record, findings), "", width)


def _findings(findings: Sequence[Finding], width: int, glyphs: Glyphs) -> Iterator[Text]:
    for number, kind in enumerate(by_kind(findings)):
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
    yield from _paragraph("in", finding.module or "the model as a whole", width)
    if others:
        yield from _paragraph("also", ", ".join(name or "the model as a whole" for name in others), width)
    yield from _paragraph("seen", ", ".join(f"{name} {value}" for name, value in evidence(finding)), width)
    yield from _paragraph("why", finding.why, width)
    yield from _paragraph("fix", finding.fix, width)


def _paragraph(name: str, words: str, width: int) -> Iterator[Text]:
    """Words in lines, after a name; what has lines of its own, as code does, keeps them and their indents."""
    lines = []
    for own in words.split("\n"):
        indent = " " * (len(own) - len(own.lstrip(" ")))
        lines += [indent + line for line in wrap(own.strip(), width - 7 - len(indent))]
    for i, line in enumerate(lines):
        yield Text.assemble((f"  {name if i == 0 else '':<5}", "dim"), line)


def _depth(record: XrayRecord, findings: Sequence[Finding], width: int, glyphs: Glyphs) -> Iterator[Text]:
    everything = stations_of(record)
    named = [place_of(everything, order) for order in _orders(record, findings)]
    stations = few(everything, MOST_STATIONS, named)
    if len(everything) < 2:
        return
    joined = any(station.branch for station in stations)
    room = width - 21 - (10 if joined else 0)  # what the figures and the spaces leave
    longest = max(cell_len(_place(station)) for station in stations)
    bar = min(16, max(6, (room - longest) // 2))
    place = min(longest, room - 2 * bar)
    forward = Bars([station.rms for station in stations], bar, glyphs)
    backward = Bars([station.gradient for station in stations], bar, glyphs)
    yield from _lines("The signal by depth: root mean squares, with bars on logarithmic scales", "bold", width)
    if len(stations) < len(everything):
        yield Text(f"({len(stations)} of {len(everything):,} places)", "dim")
    head = f"{'':{place}} {'forward':>8} {'':{bar}}  {'gradient':>8} {'':{bar}}"
    yield Text(head + ("    branch" if joined else ""), "dim")
    for station in stations:
        yield Text.assemble(
            fit_left(_place(station), place, glyphs.cut),
            f" {format_number(station.rms):>8}{_doubt(station.non_finite)}",
            (forward.draw(station.rms), _FORWARD),
            f"  {format_number(station.gradient):>8}{_doubt(station.non_finite_gradient)}",
            (backward.draw(station.gradient), _BACKWARD),
            f" {_ratio(station):>9}" if joined else "",
        )
    if joined:
        yield from _lines("branch: what is added, as a multiple of the stream that it is added to", "dim", width)
    if any(station.non_finite or station.non_finite_gradient for station in stations):
        yield from _lines("!: some of the numbers are infinite, or not numbers", "dim", width)


def _place(station: Station) -> str:
    title = station.title if station.branch or not station.label.isdigit() else f"{station.title} {station.kind}"
    return one_line(title)


def _ratio(station: Station) -> str:
    return "" if station.branch is None else format_number(station.branch.ratio)


def _doubt(non_finite: bool) -> str:
    return "!" if non_finite else " "


def _modules(record: XrayRecord, findings: Sequence[Finding], width: int, glyphs: Glyphs) -> Iterator[Text]:
    named = {finding.module for finding in findings if finding.module}
    yield Text(_row("Modules", "output", "param.", "FLOPs", "rms ", "gradient ", width, glyphs), "bold")
    for root in tree_of(record):
        yield from _branch(fold(root, named), named, "", "", width, glyphs)
    if named:
        yield Text("<: a finding is about it", "dim")


def _branch(node: Node, named: Collection[str], lead: str, below: str, width: int, glyphs: Glyphs) -> Iterator[Text]:
    module = node.module
    row = _row(
        f"{lead}{_name(node, module.name in named, _columns(width)[0] - len(lead))}",
        _size(node),
        format_count(node.parameters) if node.parameters else "",
        format_count(module.flops) if module.flops else "",
        _signal(module.output),
        _signal(module.gradient),
        width,
        glyphs,
    )
    if module.alias_of is not None and not module.output_shapes:  # it has no figures of its own, and so their room
        name = _columns(width)[0]
        row = f"{fit_left(row, name, '')} {fit_left(_size(node), width - name - 1, glyphs.cut)}"
    text = Text(row)
    text.stylize("dim", 0, len(lead))
    yield text
    for i, child in enumerate(node.children):
        last = i == len(node.children) - 1 and not node.own_flops
        fork, under = (glyphs.corner, glyphs.gap) if last else (glyphs.fork, glyphs.pipe)
        yield from _branch(child, named, below + fork, below + under, width, glyphs)
    if node.own_flops:
        own = Text(_row(f"{below}{glyphs.corner}(itself)", "", "", format_count(node.own_flops), "", "", width, glyphs))
        own.stylize("dim", 0, len(below + glyphs.corner))
        yield own


def _name(node: Node, named: bool, room: int) -> str:
    """What a row is called: the name, and the kind unless the name says it or there is no room."""
    module = node.module
    name, kind = one_line(node.label), one_line(module.kind)
    more = [f"x {len(node.alike) + 1}"] if node.alike else []
    more += ["<"] if named else []
    both = " ".join([name, kind, *more])
    if module.is_function or kind == name or cell_len(both) > room:
        return " ".join([name, *more])
    return both


def _size(node: Node) -> str:
    module = node.module
    if module.output_shapes:
        return "x".join(map(str, next((shape for shape in module.output_shapes if shape), ()))) or "number"
    if module.alias_of is not None:
        return f"= {one_line(module.alias_of)}"
    return "never ran" if is_idle(node) else ""


def _signal(signal: TensorStats | None) -> str:
    return "" if signal is None else f"{format_number(size_of(signal))}{_doubt(signal.non_finite > 0)}"


def _columns(width: int) -> tuple[int, int]:
    """How many cells names and shapes have, beside the figures."""
    room = width - 35
    return room - min(18, room // 3), min(18, room // 3)


def _row(name: str, size: str, parameters: str, flops: str, rms: str, gradient: str, width: int, glyphs: Glyphs) -> str:
    first, second = _columns(width)
    figures = zip((parameters, flops, rms, gradient), (6, 6, 9, 9), strict=True)
    cells = [fit_left(name, first, glyphs.cut), fit_left(size, second, glyphs.cut)]
    return " ".join([*cells, *(fit_right(words, columns) for words, columns in figures)])


def _foot(record: XrayRecord, width: int) -> Iterator[Text]:
    never = idle(record)
    lines = [f"Never ran: {', '.join(never)}"] if never else []
    lines += [f"Notice: {notice}" for notice in record.notices]
    lines.append("; ".join(f"{value} {name}" for name, value in facts(record)))
    for words in lines:
        yield from _lines(words, "", width)
    yield from _lines(f"normscope {record.normscope or '?'}, torch {record.torch or '?'}", "dim", width)


def _lines(words: str, style: str, width: int) -> Iterator[Text]:
    for line in wrap(words, width):
        yield Text(line, style)


def _orders(record: XrayRecord, findings: Sequence[Finding]) -> list[int]:
    names = {finding.module for finding in findings if finding.module}
    return [module.order for module in record.ran if module.name in names and module.order is not None]
