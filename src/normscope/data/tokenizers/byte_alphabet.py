"""GPT-2's byte alphabet: byte-level vocabularies write each byte as a printable character.

Printable Latin-1 bytes are written as themselves, all others as the characters from U+0100 on: a space is 'Ġ', a line
end 'Ċ'.
"""

from functools import cache

_PRINTABLE = (*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1))


@cache
def bytes_to_unicode() -> tuple[str, ...]:
    """Return the character of each byte.

    >>> bytes_to_unicode()[ord("a")], bytes_to_unicode()[ord(" ")], bytes_to_unicode()[0]
    ('a', 'Ġ', 'Ā')
    """
    others = iter(range(0x100, 0x200))
    printable = set(_PRINTABLE)
    return tuple(chr(byte if byte in printable else next(others)) for byte in range(256))


@cache
def _unicode_to_bytes() -> dict[str, int]:
    return {character: byte for byte, character in enumerate(bytes_to_unicode())}


def token_bytes(token: str) -> bytes:
    """Return the bytes of a token; an added token with characters outside the alphabet is plain UTF-8.

    >>> token_bytes("Ġcaf" + "Ã" + "©").decode(), token_bytes("two words").decode()
    (' café', 'two words')
    """
    table = _unicode_to_bytes()
    if all(character in table for character in token):
        return bytes(table[character] for character in token)
    return token.encode()
