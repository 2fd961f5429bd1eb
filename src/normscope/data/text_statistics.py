"""A first look at the whole text: how much there is, and which characters."""

from dataclasses import dataclass

from normscope.data.readers import TextPieces
from normscope.data.tokenizers.characters import Alphabet


@dataclass(frozen=True)
class TextStatistics:
    """What there is.

    Args:
        documents: how many, empty ones aside.
        characters, bytes: how many in all.
        longest: the characters of the longest document.
        alphabet: each character that occurs.
    """

    documents: int
    characters: int
    bytes: int
    longest: int
    alphabet: str


def text_statistics(pieces: TextPieces) -> TextStatistics:
    """Read all the text once.

    >>> text_statistics(iter(["one ", "two", None, "é", None, None]))
    TextStatistics(documents=2, characters=8, bytes=9, longest=7, alphabet=' enotwé')
    """
    alphabet = Alphabet()
    documents = characters = size = longest = this = 0
    for text in pieces:
        if text is None:
            documents += this > 0
            longest = max(longest, this)
            this = 0
        else:
            alphabet.add(text)
            this += len(text)
            characters += len(text)
            size += len(text.encode())
    return TextStatistics(documents, characters, size, longest, str(alphabet))
