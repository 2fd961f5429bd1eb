"""Character and byte tokenizers: one token per character of an alphabet, or per UTF-8 byte."""

import json
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from normscope.data.tokenizers.base import (
    Tokenizer,
    Tokens,
    encode_utf8,
    excerpt,
    no_eos_error,
    printable_repr,
    smallest_dtype,
)
from normscope.errors import ConfigError, TokenError


class Alphabet:
    """Collects the set of characters of a text of any length.

    >>> alphabet = Alphabet()
    >>> alphabet.add("hello ")
    >>> alphabet.add("world")
    >>> str(alphabet)
    ' dehlorw'
    """

    def __init__(self) -> None:
        self._seen = np.zeros(0x110000, dtype=np.bool_)  # one flag per Unicode code point

    def add(self, text: str) -> None:
        self._seen[code_points(text)] = True

    def __str__(self) -> str:
        return np.flatnonzero(self._seen).astype("<u4").tobytes().decode("utf-32-le")


class _OneTokenPerCharacter(Tokenizer):
    """Tokens in Unicode order."""

    def __init__(self, alphabet: str) -> None:
        if not isinstance(alphabet, str) or not alphabet or list(alphabet) != sorted(set(alphabet)):
            raise ConfigError(
                f"an alphabet must be unique characters in Unicode order, but got {alphabet!r:.80}\n"
                f"fix: CharacterTokenizer.of([text])"
            )
        encode_utf8(alphabet)
        self.alphabet = alphabet
        self.vocab_size = len(alphabet)
        codes = code_points(alphabet)
        # No character has this token, so it marks unknown characters in the table. The last entry is unknown and serves
        # all code points beyond it.
        self._table = np.full(int(codes[-1]) + 2, len(alphabet), dtype=smallest_dtype(len(alphabet) + 1))
        self._table[codes] = np.arange(len(alphabet))

    def _encode(self, text: str) -> Tokens:
        codes = code_points(text)
        ids: Tokens = self._table[np.minimum(codes, len(self._table) - 1)]
        unknown = ids == len(self.alphabet)
        if unknown.any():
            raise self._unknown(text, int(unknown.argmax()))
        return ids.astype(self.dtype, copy=False)

    @cached_property
    def token_bytes(self) -> Sequence[bytes]:
        return [character.encode() for character in self.alphabet]

    def to_json(self) -> str:
        return json.dumps({"kind": self.kind, "alphabet": self.alphabet}, ensure_ascii=False) + "\n"

    def _unknown(self, text: str, position: int) -> TokenError:
        character = text[position]
        name = unicodedata.name(character, "unnamed character")
        return TokenError(
            f"{printable_repr(character)} (U+{ord(character):04X}, {name}) is not in the tokenizer's alphabet of "
            f"{len(self.alphabet)} characters, at position {position} of the text: {excerpt(text, position)}\n"
            f"fix: remove it, add text that contains it to the corpus, or use the tokenizer 'bytes' or 'bpe', which "
            f"encode every character"
        )


class CharacterTokenizer(_OneTokenPerCharacter):
    """One token per character, in Unicode order, followed by the end-of-text token.

    >>> tokenizer = CharacterTokenizer.of(["hello world"])
    >>> tokenizer.vocab_size, tokenizer.encode("hello")
    (9, array([3, 2, 4, 4, 5], dtype=uint8))
    >>> tokenizer.decode([3, 2, 4, 4, 5, tokenizer.eos_token_id])
    'hello'
    """

    kind = "characters"

    def __init__(self, alphabet: str) -> None:
        super().__init__(alphabet)
        self.vocab_size, self.eos_token_id = len(alphabet) + 1, len(alphabet)

    @classmethod
    def of(cls, texts: Iterable[str]) -> "CharacterTokenizer":
        """Create a tokenizer for the characters of these texts."""
        alphabet = Alphabet()
        for text in texts:
            alphabet.add(text)
        return cls(str(alphabet))

    @cached_property
    def token_bytes(self) -> Sequence[bytes]:
        return [*(character.encode() for character in self.alphabet), b""]


class AlphabetTokenizer(_OneTokenPerCharacter):
    """One token per character, in Unicode order, and no end-of-text token: nanoGPT's vocabularies of characters.

    >>> tokenizer = AlphabetTokenizer(" dehlorw")
    >>> tokenizer.vocab_size, tokenizer.has_eos, tokenizer.encode("hello")
    (8, False, array([3, 2, 4, 4, 5], dtype=uint8))
    """

    kind = "alphabet"
    has_eos = False

    @property
    def eos_token_id(self) -> int:  # type: ignore[override]
        raise no_eos_error()


class ByteTokenizer(Tokenizer):
    """One token per byte; token 256 is end-of-text.

    >>> tokenizer = ByteTokenizer()
    >>> tokenizer.encode("né")
    array([110, 195, 169], dtype=uint16)
    >>> stream = tokenizer.stream()
    >>> [stream.push(token) for token in (110, 195, 169)], stream.finish()
    (['n', '', 'é'], '')
    """

    kind = "bytes"
    vocab_size = 257
    eos_token_id = 256

    @cached_property
    def token_bytes(self) -> Sequence[bytes]:
        return [*(bytes([byte]) for byte in range(256)), b""]

    def _encode(self, text: str) -> Tokens:
        return np.frombuffer(encode_utf8(text), dtype=np.uint8).astype(self.dtype)

    def to_json(self) -> str:
        return json.dumps({"kind": self.kind}) + "\n"


def code_points(text: str) -> NDArray[np.uint32]:
    """Return the Unicode code points."""
    try:
        return np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    except (UnicodeEncodeError, AttributeError):
        encode_utf8(text)  # raises a TokenError with the position
        raise
