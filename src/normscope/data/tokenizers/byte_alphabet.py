"""Byte-level vocabularies write bytes as letters: GPT-2's way, which all of them share.

A byte that is a printable character of Latin-1 is written as that character. The others, in order, are written as the
characters from U+0100 on; so a space is 'Ġ' and a line end 'Ċ'.
"""

from functools import cache

_PRINTABLE = (*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1))


@cache
def letters() -> tuple[str, ...]:
    """The letter of each byte.

    >>> letters()[ord("a")], letters()[ord(" ")], letters()[0]
    ('a', 'Ġ', 'Ā')
    """
    others = iter(range(0x100, 0x200))
    printable = set(_PRINTABLE)
    return tuple(chr(byte if byte in printable else next(others)) for byte in range(256))


@cache
def _byte_of_letter() -> dict[str, int]:
    return {letter: byte for byte, letter in enumerate(letters())}


def bytes_of(word: str) -> bytes:
    """The bytes of a word of the vocabulary; a word with other characters, which users have added, is itself.

    >>> bytes_of("Ġcaf" + "Ã" + "©").decode(), bytes_of("two words").decode()
    (' café', 'two words')
    """
    table = _byte_of_letter()
    if all(letter in table for letter in word):
        return bytes(table[letter] for letter in word)
    return word.encode()
