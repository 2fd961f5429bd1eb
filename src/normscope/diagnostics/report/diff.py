"""Render the comparison of two x-rays as text: the first divergence, then the modules that differ."""

import math
from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.text import Text

from normscope.diagnostics.diff.differences import Divergence, ModuleDiff, RecordDiff
from normscope.render.formatting import format_number, one_line, pluralize
from normscope.render.text_columns import UNICODE, Glyphs, fit_left, fit_right, join_sections, styled

MAX_ROWS = 24
"""Number of differing modules shown."""
_COLUMNS = (("output", "output"), ("gradient", "gradient"), ("weights", "weights"), ("w. grad", "weight_gradients"))


def render_diff(difference: RecordDiff, *, width: int = 80, glyphs: Glyphs = UNICODE) -> Text:
    """Render for a rich console; `.plain` has no colors. No line is wider than `width`."""
    parts = (_head(difference, width), _divergences(difference, width, glyphs), _table(difference, width, glyphs))
    return join_sections(parts)


def _head(difference: RecordDiff, width: int) -> Iterator[Text]:
    one, other = map(one_line, difference.labels)
    yield from styled(f"{one} vs {other}", "bold", width)
    source = f"half the digits of {difference.dtype}" if difference.is_default_tolerance else "as requested"
    for words in (f"relative tolerance: {format_number(difference.tolerance)} ({source})", *difference.remarks):
        yield from styled(words, "dim", width)


def _divergences(difference: RecordDiff, width: int, glyphs: Glyphs) -> Iterator[Text]:
    passes = (("forward", difference.forward), ("backward", difference.backward))
    for name, divergence in passes:
        if divergence is not None:
            yield from _divergence(name, divergence, width, glyphs)
    if not difference.diverges:
        yield Text(f"{glyphs.marks[3]} No differences: every module computes the same result.", "green")


def _divergence(direction: str, divergence: Divergence, width: int, glyphs: Glyphs) -> Iterator[Text]:
    name = one_line(divergence.module) or "the model"
    apart = f" (distance {format_number(divergence.distance)})" if math.isfinite(divergence.distance) else ""
    yield from styled(f"{glyphs.marks[0]} {direction}: first differs in {name}{apart}", "bold red", width)
    yield from styled(divergence.why, "", width, indent="  ")


def _table(difference: RecordDiff, width: int, glyphs: Glyphs) -> Iterator[Text]:
    shown = [module for module in difference.modules if _is_worth_showing(difference, module)]
    if shown:
        columns = [(title, field) for title, field in _COLUMNS if any(getattr(m, field) is not None for m in shown)]
        place = min(max(len(_name(module)) for module in shown), max(12, width - 11 * len(columns)))
        if columns:
            yield Text(" " * place + "".join(f" {title:>10}" for title, _ in columns), "dim")
        for module in shown[:MAX_ROWS]:
            line = Text(fit_left(_name(module), place, glyphs.cut))
            for _, field in columns if module.only_in is None else ():
                value = getattr(module, field)
                style = "red" if difference.exceeds(value) else "dim"
                line.append(" " + fit_right(_distance(value, module), 10), style)
            yield from _with_remark(line, _remark(difference, module, shown), width)
        if len(shown) > MAX_ROWS:
            yield Text(f"and {len(shown) - MAX_ROWS:,} more modules", "dim")
    yield from styled(_counts(difference, shown), "dim", width)


def _distance(value: float | None, module: ModuleDiff) -> str:
    """A distance, or the reason why there is none."""
    if value is None or not math.isinf(value):
        return format_number(value)
    return "shape" if module.shapes_differ else "non-finite"


def _with_remark(line: Text, remark: str, width: int) -> Iterator[Text]:
    """The row with its remark beside it, or below it if it does not fit."""
    if remark and cell_len(line.plain) + 2 + cell_len(remark) <= width:
        yield line.append(f"  {remark}", "dim")
        return
    yield line
    yield from styled(remark, "dim", width, indent="    ")


def _counts(difference: RecordDiff, shown: Sequence[ModuleDiff]) -> str:
    """Counts of compared modules by result."""
    rest = [module for module in difference.modules if module not in shown]
    unseen = [[module for module in rest if module.ran_only_in == i] for i in (0, 1)]
    alone = sum(module.only_in is not None for module in shown)
    parts = [f"{len(shown) - alone:,} differ"] if len(shown) > alone else []
    parts += [f"{alone:,} in only one"] if alone else []
    alike = len(rest) - sum(map(len, unseen))
    parts += [f"{alike:,} equal"] if alike else []
    for label, modules in zip(difference.labels, unseen, strict=True):
        parts += [f"{len(modules):,} recorded only in {one_line(label)}"] if modules else []
    return f"{pluralize(len(difference.modules), 'module')}: {', '.join(parts)}" if parts else ""


def _is_worth_showing(difference: RecordDiff, module: ModuleDiff) -> bool:
    return module.only_in is not None or any(difference.exceeds(getattr(module, field)) for _, field in _COLUMNS)


def _name(module: ModuleDiff) -> str:
    return one_line(module.name) or f"({module.kind})"


def _remark(difference: RecordDiff, module: ModuleDiff, shown: Sequence[ModuleDiff]) -> str:
    """Remarks on a module, without those already made about the model as a whole."""
    if module.only_in is not None:
        return f"only in {one_line(difference.labels[module.only_in])}"
    said = {remark for other in shown if not other.name and module.name for remark in other.remarks}
    whole = "; ".join(difference.remarks)
    return "; ".join(remark for remark in module.remarks if remark not in said and f"in {remark}" not in whole)
