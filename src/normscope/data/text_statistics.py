"""Statistics of a text: sizes and alphabet."""

from dataclasses import dataclass

from normscope.data.readers import TextPieces
from normscope.data.tokenizers.characters import Alphabet


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
