"""Text in columns of a terminal: cut, padded and wrapped by the cells it takes, which are two for some characters."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from normscope.render.formatting import one_line


@dataclass(frozen=True)
class Glyphs:
    """The characters that a drawing is made of.

    Args:
        fork, corner, pipe, gap: of a tree, two cells each.
        cut: what stands for what was left out.
        bars: parts of a cell, from little to full.
        marks: of an error, a warning, a note; and of nothing wrong.
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
    """The characters that can be written in this encoding.

    >>> glyphs_for("utf-8").cut, glyphs_for("latin-1").cut, glyphs_for("no such thing").cut
    ('…', '...', '...')
    """
    try:
        "".join(["├└│…", UNICODE.bars, *UNICODE.marks]).encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return UNICODE


def with_gaps(parts: Iterable[Iterable[Text]]) -> Text:
    """The lines of all parts under each other, with an empty line between two parts that have any."""
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
    """The text in exactly so many cells; of one that is too long, the beginning and the end.

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
    """The text at the right end of so many cells; one that is too long stays as it is."""
    return " " * (width - cell_len(text)) + text


def wrap(text: str, width: int) -> list[str]:
    """The text in lines of so many cells at most, cut at spaces, or anywhere in a word that is too long.

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


class Bars:
    """Bars on a common logarithmic scale, which spans a factor of ten at least, so that small differences look small.

    >>> bars = Bars([0.001, 0.1, 10.0], width=4, glyphs=ASCII)
    >>> [bars.draw(value) for value in (10.0, 0.1, 0.001, 0.0, float("nan"), None)]
    ['####', '##  ', '#   ', '    ', '    ', '    ']
    """

    def __init__(self, values: Iterable[float | None], width: int, glyphs: Glyphs) -> None:
        known = [math.log10(value) for value in values if value is not None and math.isfinite(value) and value > 0]
        self._high = max(known, default=0.0)
        self._low = min(min(known, default=0.0), self._high - 1)
        self._width, self._parts = width, glyphs.bars

    def share(self, value: float | None) -> float:
        """How much of the room its bar takes, from 0 to 1."""
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
