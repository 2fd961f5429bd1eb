"""Fit text into terminal columns: truncate, pad and wrap by cell width, which is two for wide characters."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from normscope.render.formatting import one_line


@dataclass(frozen=True)
class Glyphs:
    """Characters for drawing in a terminal.

    Args:
        fork, corner, pipe, gap: tree branches, two cells each.
        cut: ellipsis for truncated text.
        bars: partial blocks, from empty to full.
        marks: symbols for error, warning, note and success.
    """

    fork: str
    corner: str
    pipe: str
    gap: str
    cut: str
    bars: str
    marks: tuple[str, str, str, str]


UNICODE = Glyphs("├ ", "└ ", "│ ", "  ", "…", "▏▎▍▌▋▊▉█", ("✗", "▲", "•", "✓"))
ASCII = Glyphs("|-", "`-", "| ", "  ", "...", "#", ("x", "!", "-", "ok"))


def glyphs_for(encoding: str) -> Glyphs:
    """Choose characters that this encoding can represent.

    >>> glyphs_for("utf-8").cut, glyphs_for("latin-1").cut, glyphs_for("no such thing").cut
    ('…', '...', '...')
    """
    try:
        "".join(["├└│…", UNICODE.bars, *UNICODE.marks]).encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return UNICODE


def join_sections(parts: Iterable[Iterable[Text]]) -> Text:
    """Join sections of lines, with an empty line between non-empty sections."""
    text = Text(no_wrap=True, end="")
    for part in parts:
        lines = list(part)
        if lines and text.plain:
            text.append("\n")
        for line in lines:
            line.rstrip()
            text.append_text(line).append("\n")
    return text


def fit_left(text: str, width: int, cut: str) -> str:
    """Left-align text in `width` cells; the middle of a longer text is cut out.

    >>> fit_left("blocks.11.attention.out", 12, "…"), fit_left("out", 5, "…")
    ('blocks…n.out', 'out  ')
    """
    if cell_len(text) <= width:
        return set_cell_size(text, width)
    if width <= cell_len(cut):
        return set_cell_size("." * width, width)
    room = width - cell_len(cut)
    start = set_cell_size(text, (room + 1) // 2).rstrip()
    end = ""
    for character in reversed(text):
        if cell_len(character + end) > room // 2:
            break
        end = character + end
    return set_cell_size(start + cut + end, width)


def fit_right(text: str, width: int) -> str:
    """Right-align text in `width` cells; a longer text is unchanged."""
    return " " * (width - cell_len(text)) + text


def wrap(text: str, width: int) -> list[str]:
    """Wrap text to `width` cells, at spaces, or inside words that are too long.

    >>> wrap("up to nine", 5), wrap("漢字 漢字", 5), wrap("attention", 5)
    (['up to', 'nine'], ['漢字', '漢字'], ['atten', 'tion'])
    """
    lines, line = [], ""
    for word in one_line(text).split(" "):
        joined = f"{line} {word}" if line else word
        if cell_len(joined) <= width:
            line = joined
            continue
        if line:
            lines.append(line)
        line = ""
        for character in word:
            if cell_len(line + character) > width:
                lines.append(line)
                line = ""
            line += character
    return [*lines, line] if line else lines


def styled(text: str, style: str, width: int, indent: str = "") -> Iterator[Text]:
    """The lines of wrapped text in this style, for a rich console."""
    for line in wrap(text, width - len(indent)):
        yield Text(indent + line, style)


class LogBars:
    """Bars on a shared log scale that spans at least a factor of ten, so that small differences look small.

    >>> bars = LogBars([0.001, 0.1, 10.0], width=4, glyphs=ASCII)
    >>> [bars.draw(value) for value in (10.0, 0.1, 0.001, 0.0, float("nan"), None)]
    ['####', '##  ', '#   ', '    ', '    ', '    ']
    """

    def __init__(self, values: Iterable[float | None], width: int = 0, glyphs: Glyphs = UNICODE) -> None:
        known = [math.log10(value) for value in values if value is not None and math.isfinite(value) and value > 0]
        self._high = max(known, default=0.0)
        self._low = min(min(known, default=0.0), self._high - 1)
        self._width, self._parts = width, glyphs.bars

    def share(self, value: float | None) -> float:
        """Length of the bar, from 0 to 1."""
        if value is None or not math.isfinite(value) or value <= 0:
            return 0.0
        share = (math.log10(value) - self._low) / (self._high - self._low)
        return min(1.0, max(0.0, share))

    def draw(self, value: float | None) -> str:
        if value is None or not math.isfinite(value) or value <= 0:
            return " " * self._width
        steps = max(1, round(self.share(value) * self._width * len(self._parts)))
        full, part = divmod(steps, len(self._parts))
        return (self._parts[-1] * full + (self._parts[part - 1] if part else "")).ljust(self._width)
