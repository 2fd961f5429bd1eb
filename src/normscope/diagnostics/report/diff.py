"""The difference of two x-rays as text: where it begins, and the modules that differ, in the order they ran in."""

import math
from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.text import Text

from normscope.diagnostics.diff.diff import Beginning, Difference, ModuleDifference
from normscope.diagnostics.report.text_columns import UNICODE, Glyphs, fit_left, fit_right, with_gaps, wrap
from normscope.render.formatting import format_number, one_line, pluralize

MOST = 24
"""How many of the modules that differ are shown."""
_FIGURES = (("output", "output"), ("gradient", "gradient"), ("weights", "weights"), ("their grad", "weight_gradients"))


def render_difference(difference: Difference, *, width: int = 80, glyphs: Glyphs = UNICODE) -> Text:
    """The difference for a console of rich; `.plain` is the same without colours. No line is wider than `width`."""
    parts = (_head(difference, width), _beginnings(difference, width, glyphs), _table(difference, width, glyphs))
    return with_gaps(parts)


def _head(difference: Difference, width: int) -> Iterator[Text]:
    one, other = map(one_line, difference.labels)
    for line in wrap(f"{one} and {other}", width):
        yield Text(line, "bold")
    half = f"half of {difference.dtype}'s digits" if difference.half_the_digits else "as asked for"
    for line in wrap(
        f"up to {format_number(difference.tolerance)} of their size apart counts as rounding: {half}", width
    ):
        yield Text(line, "dim")
    for remark in difference.remarks:
        for line in wrap(remark, width):
            yield Text(line, "dim")


def _beginnings(difference: Difference, width: int, glyphs: Glyphs) -> Iterator[Text]:
    ways = (("forward", difference.forward), ("backward", difference.backward))
    for way, beginning in ways:
        if beginning is not None:
            yield from _beginning(way, beginning, width, glyphs)
    if not difference.diverges:
        yield Text(f"{glyphs.marks[3]} no module computes anything else", "green")


def _beginning(way: str, beginning: Beginning, width: int, glyphs: Glyphs) -> Iterator[Text]:
    name = one_line(beginning.module) or "the model itself"
    apart = f", {format_number(beginning.distance)} apart" if math.isfinite(beginning.distance) else ""
    for line in wrap(f"{glyphs.marks[0]} {way}: it begins in {name}{apart}", width):
        yield Text(line, "bold red")
    for line in wrap(beginning.why, width - 2):
        yield Text(f"  {line}")


def _table(difference: Difference, width: int, glyphs: Glyphs) -> Iterator[Text]:
    shown = [module for module in difference.modules if _is_worth_showing(difference, module)]
    if shown:
        columns = [(title, field) for title, field in _FIGURES if any(getattr(m, field) is not None for m in shown)]
        place = min(max(len(_name(module)) for module in shown), max(12, width - 11 * len(columns)))
        if columns:
            yield Text(" " * place + "".join(f" {title:>10}" for title, _ in columns), "dim")
        for module in shown[:MOST]:
            line = Text(fit_left(_name(module), place, glyphs.cut))
            for _, field in columns if module.only_in is None else ():
                value = getattr(module, field)
                style = "red" if difference.exceeds(value) else "dim"
                line.append(" " + fit_right(_distance(value, module), 10), style)
            yield from _with_remark(line, _remark(difference, module, shown), width)
        if len(shown) > MOST:
            yield Text(f"and {len(shown) - MOST:,} more", "dim")
    for words in wrap(_counts(difference, shown), width):
        yield Text(words, "dim")


def _distance(value: float | None, module: ModuleDifference) -> str:
    """A distance; where none can be told, the reason."""
    if value is None or not math.isinf(value):
        return format_number(value)
    return "other size" if module.other_sizes else "not finite"


def _with_remark(line: Text, remark: str, width: int) -> Iterator[Text]:
    """The row and its remark beside it; below it if there is no room."""
    if remark and cell_len(line.plain) + 2 + cell_len(remark) <= width:
        yield line.append(f"  {remark}", "dim")
        return
    yield line
    for words in wrap(remark, width - 4):
        yield Text(f"    {words}", "dim")


def _counts(difference: Difference, shown: Sequence[ModuleDifference]) -> str:
    """How many modules there are of each kind; together they are all that were compared."""
    rest = [module for module in difference.modules if module not in shown]
    unseen = [[module for module in rest if module.ran_only_in == i] for i in (0, 1)]
    alone = sum(module.only_in is not None for module in shown)
    parts = [f"{len(shown) - alone:,} differ"] if len(shown) > alone else []
    parts += [f"{alone:,} in one of the two alone"] if alone else []
    alike = len(rest) - sum(map(len, unseen))
    parts += [f"{alike:,} alike"] if alike else []
    for label, modules in zip(difference.labels, unseen, strict=True):
        parts += [f"{len(modules):,} seen in {one_line(label)} alone"] if modules else []
    return f"{pluralize(len(difference.modules), 'module')}: {', '.join(parts)}" if parts else ""


def _is_worth_showing(difference: Difference, module: ModuleDifference) -> bool:
    far = difference.exceeds(module.output, module.gradient, module.weights, module.weight_gradients)
    return far or module.only_in is not None


def _name(module: ModuleDifference) -> str:
    return one_line(module.name) or f"({module.kind})"


def _remark(difference: Difference, module: ModuleDifference, shown: Sequence[ModuleDifference]) -> str:
    """What is said of a module, but for what has been said of the whole, or of the model itself."""
    if module.only_in is not None:
        return f"only in {one_line(difference.labels[module.only_in])}"
    said = {remark for other in shown if not other.name and module.name for remark in other.remarks}
    whole = "; ".join(difference.remarks)
    return "; ".join(remark for remark in module.remarks if remark not in said and f"in {remark}" not in whole)
