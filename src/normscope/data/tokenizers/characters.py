"""A token for each character of the corpus."""

import json
import unicodedata
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from normscope.data.tokenizers.base import (
    DecodeStream,
    TokenIds,
    Tokenizer,
    Tokens,
    encode_utf8,
    excerpt,
    printable_repr,
)
from normscope.errors import ConfigError, TokenError


class Alphabet:
    """The characters that were seen, however long the text: it keeps a mark for each, and no text.

    >>> alphabet = Alphabet()
    >>> alphabet.add("hello ")
    >>> alphabet.add("world")
    >>> str(alphabet)
    ' dehlorw'
    """

    def __init__(self) -> None:
        self._seen = np.zeros(0x110000, dtype=np.bool_)  # one place for each character that Unicode can have

    def add(self, text: str) -> None:
        self._seen[code_points(text)] = True

    def __str__(self) -> str:
        return _text_of(np.flatnonzero(self._seen))


class CharacterTokenizer(Tokenizer):
    """Each character of an alphabet is a token, in the order of Unicode; the token after them ends a document.

    >>> tokenizer = CharacterTokenizer.of(["hello world"])
    >>> tokenizer.vocab_size, tokenizer.encode("hello")
    (9, array([3, 2, 4, 4, 5], dtype=uint8))
    >>> tokenizer.decode([3, 2, 4, 4, 5, tokenizer.eos_token_id])
    'hello'
    """

    kind = "characters"

    def __init__(self, alphabet: str) -> None:
        if not isinstance(alphabet, str) or not alphabet or list(alphabet) != sorted(set(alphabet)):
            raise ConfigError(
                f"an alphabet is each character once, in the order of Unicode, but got {alphabet!r:.80}\n"
                f"fix: CharacterTokenizer.of([text]) makes one"
            )
        encode_utf8(alphabet)
        self.alphabet = alphabet
        self.vocab_size = len(alphabet) + 1
        self.eos_token_id = len(alphabet)
        self._codes = code_points(alphabet)
        # No character has the token `end`, so it can stand for "unknown" in the table. The last entry is unknown, and
        # serves all that lie beyond it.
        self._table = np.full(int(self._codes[-1]) + 2, self.eos_token_id, dtype=self.dtype)
        self._table[self._codes] = np.arange(len(alphabet))

    @classmethod
    def of(cls, texts: Iterable[str]) -> "CharacterTokenizer":
        """A tokenizer for the characters of these texts."""
        alphabet = Alphabet()
        for text in texts:
            alphabet.add(text)
        return cls(str(alphabet))

    def _encode(self, text: str) -> Tokens:
        codes = code_points(text)
        ids: Tokens = self._table[np.minimum(codes, len(self._table) - 1)]
        unknown = ids == self.eos_token_id
        if unknown.any():
            raise self._unknown(text, int(unknown.argmax()))
        return ids

    def decode(self, tokens: TokenIds) -> str:
        ids = self.check_tokens(tokens)
        return _text_of(self._codes[ids[ids != self.eos_token_id]])

    def stream(self, after: TokenIds = ()) -> DecodeStream:
        return _CharacterDecodeStream(self)

    def to_json(self) -> str:
        return json.dumps({"kind": self.kind, "alphabet": self.alphabet}, ensure_ascii=False) + "\n"

    def _unknown(self, text: str, place: int) -> TokenError:
        character = text[place]
        name = unicodedata.name(character, "a character without a name")
        return TokenError(
            f"{printable_repr(character)} (U+{ord(character):04X}, {name}) is not in the tokenizer's alphabet of "
            f"{len(self.alphabet)} characters; it is at position {place} of the text: {excerpt(text, place)}\n"
            f"fix: leave it out, add text that has it to the corpus, or use the tokenizer 'bytes' or 'bpe', which know "
            f"every character"
        )


class _CharacterDecodeStream(DecodeStream):
    def __init__(self, tokenizer: CharacterTokenizer) -> None:
        self._tokenizer = tokenizer

    def push(self, token: int) -> str:
        token = self._tokenizer.check_token(token)
        return "" if token == self._tokenizer.eos_token_id else self._tokenizer.alphabet[token]


def code_points(text: str) -> NDArray[np.uint32]:
    """The number of each character."""
    try:
        return np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    except (UnicodeEncodeError, AttributeError):
        encode_utf8(text)  # says what is wrong
        raise


def _text_of(codes: NDArray[np.integer]) -> str:
    return codes.astype("<u4").tobytes().decode("utf-32-le")
