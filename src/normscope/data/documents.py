"""Documents as streams of text pieces: sizes and alphabet, and splitting at line ends.

A stream yields strings and Nones. The strings up to a None are the pieces of one document; None marks its end.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from normscope.data.tokenizers.characters import Alphabet

TextPieces = Iterator[str | None]


@dataclass(frozen=True)
class TextStatistics:
    """Statistics of a text.

    Args:
        documents: number of non-empty documents.
        characters, bytes: total size (bytes in UTF-8).
        longest: characters of the longest document.
        alphabet: the characters that occur, sorted.
    """

    documents: int
    characters: int
    bytes: int
    longest: int
    alphabet: str


def text_statistics(pieces: TextPieces) -> TextStatistics:
    """Compute the statistics in one pass.

    >>> text_statistics(iter(["one ", "two", None, "é", None, None]))
    TextStatistics(documents=2, characters=8, bytes=9, longest=7, alphabet=' enotwé')
    """
    alphabet = Alphabet()
    documents = characters = size = longest = current = 0
    for text in pieces:
        if text is None:
            documents += current > 0
            longest = max(longest, current)
            current = 0
        else:
            alphabet.add(text)
            current += len(text)
            characters += len(text)
            size += len(text.encode())
    return TextStatistics(documents, characters, size, longest, str(alphabet))


def split_documents(pieces: TextPieces, size: int, protected: Sequence[str] = ()) -> TextPieces:
    """Split documents into pieces of at most `size` characters.

    The boundaries depend only on the document, not on the pieces in which it arrives. A boundary is after a line end if
    possible, else before a space, else anywhere, but never inside one of the `protected` strings (special tokens).

    >>> list(split_documents(iter(["one two\\nthr", "ee four", None, "five", None]), size=9))
    ['one two\\n', 'three', ' four', None, 'five', None]
    """
    text, ahead = "", max(map(len, protected), default=0)
    for piece in pieces:
        # A protected string that starts before the boundary is only recognized once it has been read in full.
        text, limit = (text, size) if piece is None else (text + piece, size + ahead)
        start = 0
        while len(text) - start > limit:
            stop = avoid_splitting(text, _boundary(text, start + size // 2, start + size), protected, start)
            yield text[start:stop]
            start = stop
        text = text[start:]
        if piece is None:
            if text:
                yield text
            yield None
            text = ""


def avoid_splitting(text: str, boundary: int, protected: Sequence[str], start: int = 0) -> int:
    """Move a boundary out of a protected string: before it, or after it if it begins at `start`.

    >>> avoid_splitting("one<|end|>two", 6, ["<|end|>"]), avoid_splitting("<|end|>two", 3, ["<|end|>"])
    (3, 7)
    """
    for string in protected:
        found = text.find(string, max(start, boundary - len(string) + 1), boundary + len(string) - 1)
        if 0 <= found < boundary:
            return found if found > start else found + len(string)
    return boundary


def _boundary(text: str, first: int, last: int) -> int:
    """Return the best boundary in (first, last]."""
    newest = line = text.rfind("\n", first, last) + 1
    while line:
        if _keeps_words(text, line, last):
            return line
        line = text.rfind("\n", first, line - 1) + 1
    if newest:
        return newest
    space = text.rfind(" ", first + 1, last)
    return space if space >= 0 else last


def _keeps_words(text: str, boundary: int, last: int) -> bool:
    """Whether a pre-tokenizer finds the same words if the text is split after this line end.

    Pre-tokenizers group whitespace, except for its last character, which belongs to the next word. So the words stay
    the same after a single line end, and before the last of several line ends.
    """
    if not text[boundary].isspace():
        return not text[boundary - 2 : boundary - 1].isspace()
    return text[boundary] == "\n" and boundary < last and not text[boundary + 1].isspace()
