"""Long documents in smaller pieces, cut where it hurts least."""

from collections.abc import Sequence

from normscope.data.readers import TextPieces


def split_documents(pieces: TextPieces, size: int, whole: Sequence[str] = ()) -> TextPieces:
    """The same documents, in pieces of at most `size` characters: a document that is no longer stays whole.

    Where it is cut depends on the document alone, and not on the pieces in which it came. A cut is after a line, else
    before a space, else anywhere; but never inside of the words that are to stay whole.

    >>> list(split_documents(iter(["one two\\nthr", "ee four", None, "five", None]), size=9))
    ['one two\\n', 'three', ' four', None, 'five', None]
    """
    text, ahead = "", max(map(len, whole), default=0)
    for piece in pieces:
        # A word that begins before the place of a cut has to be there in full before it is known to be one.
        text, room = (text, size) if piece is None else (text + piece, size + ahead)
        start = 0
        while len(text) - start > room:
            stop = avoid_splitting(text, _place(text, start + size // 2, start + size), whole, start)
            yield text[start:stop]
            start = stop
        text = text[start:]
        if piece is None:
            if text:
                yield text
            yield None
            text = ""


def avoid_splitting(text: str, place: int, words: Sequence[str], start: int = 0) -> int:
    """The place of a cut, moved before a word that it would go through, or behind one that begins at `start`.

    >>> avoid_splitting("one<|end|>two", 6, ["<|end|>"]), avoid_splitting("<|end|>two", 3, ["<|end|>"])
    (3, 7)
    """
    for word in words:
        at = text.find(word, max(start, place - len(word) + 1), place + len(word) - 1)
        if 0 <= at < place:
            return at if at > start else at + len(word)
    return place


def _place(text: str, first: int, last: int) -> int:
    """Where to cut, after `first` and not after `last`."""
    newest = line = text.rfind("\n", first, last) + 1
    while line:
        if _keeps_words(text, line, last):
            return line
        line = text.rfind("\n", first, line - 1) + 1
    if newest:
        return newest
    space = text.rfind(" ", first + 1, last)
    return space if space >= 0 else last


def _keeps_words(text: str, place: int, last: int) -> bool:
    """Whether a tokenizer that splits text into words finds the same ones if the text is cut after this line.

    Such tokenizers take white space together, all but the last of it, which goes with the word that follows. So a cut
    keeps the words after a line end between two words, and before the last line end of several.
    """
    if not text[place].isspace():
        return not text[place - 2 : place - 1].isspace()
    return text[place] == "\n" and place < last and not text[place + 1].isspace()
