"""Word wrap for text that comes piece by piece, as a model writes it."""

import unicodedata

from rich.cells import cell_len

TAB = 8
_NO_BREAK = frozenset("\N{NO-BREAK SPACE}\N{NARROW NO-BREAK SPACE}\N{FIGURE SPACE}\N{WORD JOINER}")
_ZERO_WIDTH_JOINER = "\N{ZERO WIDTH JOINER}"


class WordWrap:
    """Breaks lines between words, so that no word is cut at the edge of the terminal.

    A word is held back until it is whole, since only then is it known whether it fits. Wide characters (Chinese,
    Japanese, Korean, emoji) take two columns and may be parted anywhere, but not from what belongs to them: accents,
    joined emoji, and the full stops and closing brackets that no line begins with. A word that is longer than a line
    is cut. The space at which a line is broken is dropped; line breaks of the text and its indentation stay.

    >>> wrap = WordWrap(10)
    >>> [wrap.feed(piece) for piece in ("Once u", "pon a ti", "me there")], wrap.flush()
    (['Once', ' upon\\na', ' time'], '\\nthere')

    Args:
        width: columns of a line.
    """

    def __init__(self, width: int) -> None:
        self._width = max(2, width)  # a wide character has to fit
        self._column = 0
        self._spaces = ""  # seen, and not yet given
        self._word = ""  # the same of a word; it comes after the spaces

    def feed(self, text: str) -> str:
        """Take the next piece; returns what can be printed now."""
        return "".join(map(self._take, text))

    def flush(self) -> str:
        """What was held back, at the end of the text."""
        return self._end_line()

    def _take(self, character: str) -> str:
        if character == "\n":
            return self._end_line() + "\n"
        if character.isspace() and character not in _NO_BREAK:
            shown = self._give_word()
            self._spaces += character
            return shown
        shown = self._give_word() if self._word and _may_part(self._word, character) else ""
        self._word += character
        return shown + self._cut_long_word()

    def _end_line(self) -> str:
        """What is held at the end of a line; spaces beyond the edge would begin another."""
        shown = self._give_word()
        if self._column + self._width_of(self._spaces) <= self._width:
            shown += self._spaces
        self._column, self._spaces = 0, ""
        return shown

    def _give_word(self) -> str:
        """The word that is held, on this line or on the next."""
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
        """As much of a word that no line can hold as fills one."""
        if cell_len(self._word) <= self._width:
            return ""
        self._word, last = self._word[:-1], self._word[-1]
        before = "\n" if self._column else ""
        self._column, self._spaces = 0, ""
        shown = before + self._give_word()
        self._word = last
        return shown

    def _width_of(self, spaces: str) -> int:
        column = self._column
        for space in spaces:
            column += TAB - column % TAB if space == "\t" else cell_len(space)
        return column - self._column


def _may_part(word: str, following: str) -> bool:
    """Whether a line may end between them, where there is no space."""
    if word[-1] in _NO_BREAK or following in _NO_BREAK or word[-1] == _ZERO_WIDTH_JOINER or _belongs(following):
        return False
    if _is_flag_half(word[-1]) and _is_flag_half(following):
        return sum(map(_is_flag_half, word)) % 2 == 0
    opens = unicodedata.category(word[-1]) in ("Ps", "Pi")
    return not opens and (cell_len(word[-1]) > 1 or cell_len(following) > 1 or _ends_wide(word))


def _belongs(character: str) -> bool:
    """Whether it belongs to the character before: an accent, a joiner, a closing bracket, a full stop."""
    kind = unicodedata.category(character)
    return cell_len(character) == 0 or kind in ("Mn", "Mc", "Me", "Cf", "Pe", "Pf", "Po") or character in "ー々"


def _ends_wide(word: str) -> bool:
    """Whether the last character that takes room, accents aside, is a wide one."""
    bases = (character for character in reversed(word) if not _belongs(character))
    return cell_len(next(bases, "")) > 1


def _is_flag_half(character: str) -> bool:
    """Regional indicators, of which two make a flag."""
    return "\U0001f1e6" <= character <= "\U0001f1ff"
