"""The difference of two x-rays as text: where it begins, and the modules that differ, in the order they ran in."""

from collections.abc import Iterator

from rich.text import Text

from normscope.display.words import figure, in_one_line, many
from normscope.xray.diff import Beginning, Difference, ModuleDifference
from normscope.xray.render.cells import UNICODE, Glyphs, fit_left, fit_right, with_gaps, wrap

MOST = 24
"""How many of the modules that differ are shown."""
_FIGURES = (("output", "output"), ("gradient", "gradient"), ("weights", "weights"), ("their grad", "weight_gradients"))


def render_difference(difference: Difference, *, width: int = 80, glyphs: Glyphs = UNICODE) -> Text:
    """The difference for a console of rich; `.plain` is the same without colours. No line is wider than `width`."""
    parts = (_head(difference, width), _beginnings(difference, width, glyphs), _table(difference, width, glyphs))
    return with_gaps(parts)


def _head(difference: Difference, width: int) -> Iterator[Text]:
    one, other = map(in_one_line, difference.labels)
    for line in wrap(f"{one} and {other}", width):
        yield Text(line, "bold")
    half = f"half of {difference.dtype}'s digits" if difference.half_the_digits else "as asked for"
    for line in wrap(f"up to {figure(difference.tolerance)} of their size apart counts as rounding: {half}", width):
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
    name = in_one_line(beginning.module) or "the model itself"
    for line in wrap(f"{glyphs.marks[0]} {way}: it begins in {name}, {figure(beginning.distance)} apart", width):
        yield Text(line, "bold red")
    for line in wrap(beginning.why, width - 2):
        yield Text(f"  {line}")


def _table(difference: Difference, width: int, glyphs: Glyphs) -> Iterator[Text]:
    shown = [module for module in difference.modules if _is_worth_showing(difference, module)]
    alike = len(difference.modules) - len(shown)
    if shown:
        columns = [(title, field) for title, field in _FIGURES if any(getattr(m, field) is not None for m in shown)]
        longest = max(len(_name(module)) for module in shown)
        said = any(_remark(difference, module) for module in shown)
        place = min(longest, max(12, width - 11 * len(columns) - (16 if said else 0)))
        room = width - place - 11 * len(columns) - 2
        yield Text(" " * place + "".join(f" {title:>10}" for title, _ in columns), "dim")
        for module in shown[:MOST]:
            line = Text(fit_left(_name(module), place, glyphs.cut))
            for _, field in columns:
                value = getattr(module, field)
                style = "red" if difference.exceeds(value) else "dim"
                line.append(" " + fit_right(figure(value), 10), style)
            words = wrap(_remark(difference, module), max(room, 8))
            line.append(f"  {words[0]}{glyphs.cut if len(words) > 1 else ''}" if words and room >= 8 else "", "dim")
            line.truncate(width)
            yield line
        if len(shown) > MOST:
            yield Text(f"and {len(shown) - MOST:,} more", "dim")
    if alike:
        yield Text(f"{many(alike, 'other module' if shown else 'module')} alike", "dim")


def _is_worth_showing(difference: Difference, module: ModuleDifference) -> bool:
    far = difference.exceeds(module.output, module.gradient, module.weights, module.weight_gradients)
    return far or module.only_in is not None


def _name(module: ModuleDifference) -> str:
    return in_one_line(module.name) or f"({module.kind})"


def _remark(difference: Difference, module: ModuleDifference) -> str:
    if module.only_in is not None:
        return f"only in {difference.labels[module.only_in]}"
    return "; ".join(module.remarks)
