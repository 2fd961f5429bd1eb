"""Incremental word wrap for streamed text."""

import unicodedata

from rich.cells import cell_len

TAB = 8
_NO_BREAK = frozenset("\N{NO-BREAK SPACE}\N{NARROW NO-BREAK SPACE}\N{FIGURE SPACE}\N{WORD JOINER}")
_ZERO_WIDTH_JOINER = "\N{ZERO WIDTH JOINER}"


class WordWrap:
    """Wraps streamed text between words.

    A word is buffered until it is complete, since only then is it known whether it fits. Wide characters (Chinese,
    Japanese, Korean, emoji) take two columns; lines may break between them, but not before accents, joined emoji,
    full stops and closing brackets. Words longer than a line are split. The space at a line break is dropped; line
    breaks and indentation in the text are kept.

    >>> wrap = WordWrap(10)
    >>> [wrap.feed(piece) for piece in ("Once u", "pon a ti", "me there")], wrap.flush()
    (['Once', ' upon\\na', ' time'], '\\nthere')

    Args:
        width: line width in columns.
    """

    def __init__(self, width: int) -> None:
        self._width = max(2, width)  # room for a wide character
        self._column = 0
        self._spaces = ""  # buffered whitespace
        self._word = ""  # buffered word, after the whitespace

    def feed(self, text: str) -> str:
        """Add a piece of text; returns what can be printed now."""
        return "".join(map(self._take, text))

    def flush(self) -> str:
        """Return the remaining buffered text."""
        return self._end_line()

    def _take(self, character: str) -> str:
        if character == "\n":
            return self._end_line() + "\n"
        if character.isspace() and character not in _NO_BREAK:
            shown = self._emit_word()
            self._spaces += character
            return shown
        shown = self._emit_word() if self._word and _may_break(self._word, character) else ""
        self._word += character
        return shown + self._cut_long_word()

    def _end_line(self) -> str:
        """Emit the buffer at the end of a line; spaces beyond the edge are dropped."""
        shown = self._emit_word()
        if self._column + self._width_of(self._spaces) <= self._width:
            shown += self._spaces
        self._column, self._spaces = 0, ""
        return shown

    def _emit_word(self) -> str:
        """Emit the buffered word, on this line or on the next."""
        if not self._word:
            return ""
        before, start = self._spaces, self._column + self._width_of(self._spaces)
        if start + cell_len(self._word) > self._width:
            before, start = "\n" if self._column else "", 0
        shown = before + self._word
        self._column = start + cell_len(self._word)
        self._spaces = self._word = ""
        return shown

    def _cut_long_word(self) -> str:
        """Emit the part of an overlong word that fills a line."""
        if cell_len(self._word) <= self._width:
            return ""
        self._word, last = self._word[:-1], self._word[-1]
        before = "\n" if self._column else ""
        self._column, self._spaces = 0, ""
        shown = before + self._emit_word()
        self._word = last
        return shown

    def _width_of(self, spaces: str) -> int:
        column = self._column
        for space in spaces:
            column += TAB - column % TAB if space == "\t" else cell_len(space)
        return column - self._column


def _may_break(word: str, following: str) -> bool:
    """Whether a line may break between them without a space."""
    if word[-1] in _NO_BREAK or following in _NO_BREAK or word[-1] == _ZERO_WIDTH_JOINER or _attaches(following):
        return False
    if _is_flag_half(word[-1]) and _is_flag_half(following):
        return sum(map(_is_flag_half, word)) % 2 == 0
    opens = unicodedata.category(word[-1]) in ("Ps", "Pi")
    return not opens and (cell_len(word[-1]) > 1 or cell_len(following) > 1 or _ends_wide(word))


def _attaches(character: str) -> bool:
    """Whether it attaches to the previous character: an accent, a joiner, a closing bracket, a full stop."""
    kind = unicodedata.category(character)
    return cell_len(character) == 0 or kind in ("Mn", "Mc", "Me", "Cf", "Pe", "Pf", "Po") or character in "ー々"


def _ends_wide(word: str) -> bool:
    """Whether the last base character, ignoring accents, is wide."""
    bases = (character for character in reversed(word) if not _attaches(character))
    return cell_len(next(bases, "")) > 1


def _is_flag_half(character: str) -> bool:
    """Whether it is a regional indicator; two of them form a flag."""
    return "\U0001f1e6" <= character <= "\U0001f1ff"
