"""Byte-level vocabularies write bytes as letters: GPT-2's way, which all of them share.

A byte that is a printable character of Latin-1 is written as that character. The others, in order, are written as the
characters from U+0100 on; so a space is 'Ġ' and a line end 'Ċ'.
"""

from functools import cache

_PRINTABLE = (*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1))


@cache
def bytes_to_unicode() -> tuple[str, ...]:
    """The letter of each byte.

    >>> bytes_to_unicode()[ord("a")], bytes_to_unicode()[ord(" ")], bytes_to_unicode()[0]
    ('a', 'Ġ', 'Ā')
    """
    others = iter(range(0x100, 0x200))
    printable = set(_PRINTABLE)
    return tuple(chr(byte if byte in printable else next(others)) for byte in range(256))


@cache
def _unicode_to_bytes() -> dict[str, int]:
    return {letter: byte for byte, letter in enumerate(bytes_to_unicode())}


def token_bytes(word: str) -> bytes:
    """The bytes of a word of the vocabulary; a word with other characters, which users have added, is itself.

    >>> token_bytes("Ġcaf" + "Ã" + "©").decode(), token_bytes("two words").decode()
    (' café', 'two words')
    """
    table = _unicode_to_bytes()
    if all(letter in table for letter in word):
        return bytes(table[letter] for letter in word)
    return word.encode()
