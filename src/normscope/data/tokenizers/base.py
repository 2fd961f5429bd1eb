"""What every tokenizer can do: text to numbers and back, at once or token by token."""

import codecs
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from normscope.checks import is_integer
from normscope.errors import DtypeError, TokenError
from normscope.storage.files import write_atomically

EOS_TOKEN = "<|end|>"
"""How the token that ends a document is called."""

EOS_NAMES = (EOS_TOKEN, "<|endoftext|>")
"""What a text may call the end of a document; the second is what most corpora have between their texts."""

DEFAULT_VOCAB_SIZE = 2048
"""How many tokens byte-pair encoding learns, unless told otherwise."""

TokenIds = Sequence[int] | NDArray[np.integer]
Tokens = NDArray[np.unsignedinteger]


class DecodeStream(ABC):
    """Tokens in, one by one; text out as soon as it is whole.

    A character whose bytes are spread over several tokens comes out with the last of them. All that `push` and
    `finish` gave, one after the other, is what the tokenizer's `decode` gives.
    """

    @abstractmethod
    def push(self, token: int) -> str:
        """Take the next token; returns the text that is certain now, often of that token, sometimes nothing."""

    def finish(self, *, cut: bool = False) -> str:
        """The text that was still waiting for more.

        Args:
            cut: the text was cut off here, for its length: half a character at its end is left out. Otherwise it is
                U+FFFD, as are bytes that no further ones could make a character of.
        """
        return ""


class Tokenizer(ABC):
    """Text to token ids and back.

    A text is text: what looks like a special token in it, such as "<|end|>", is spelled out like any other words,
    unless `allow_special` is set. Special tokens, `end` among them, have no text: `decode` leaves them out.

    Attributes:
        kind: what sort of tokenizer this is, for people to read.
        vocab_size: how many tokens there are.
        end: the id of the token that ends a document; `encode` never gives it, unless asked to.
        notices: what its user should know.
    """

    kind: str
    vocab_size: int
    eos_token_id: int
    notices: tuple[str, ...] = ()

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger]:
        """The smallest type of whole numbers that holds every token."""
        return smallest_dtype(self.vocab_size)

    @property
    def special_tokens(self) -> dict[str, int]:
        """Special tokens by the names that they have in a text; the end goes by all of END_NAMES."""
        return dict.fromkeys(EOS_NAMES, self.eos_token_id)

    def encode(self, text: str, *, allow_special: bool = False) -> Tokens:
        """The tokens of a text, without an end.

        Args:
            text: any.
            allow_special: whether the names of special tokens in the text stand for these tokens. Leave it off for
                text that others wrote, or whoever wrote it can end a document.
        """
        return self.encode_many([text], allow_special=allow_special)[0]

    def encode_many(self, texts: Sequence[str], *, allow_special: bool = False) -> list[Tokens]:
        """The tokens of several texts, each for itself; some tokenizers are faster so."""
        if not allow_special:
            return self._encode_many(texts)
        special = self.special_tokens
        parts = [split_special(text, special) for text in texts]
        plain = iter(self._encode_many([part for one in parts for part in one if part not in special]))
        return [
            np.concatenate([np.array([special[part]], self.dtype) if part in special else next(plain) for part in one])
            for one in parts
        ]

    def _encode_many(self, texts: Sequence[str]) -> list[Tokens]:
        return [self._encode(text) for text in texts]

    @abstractmethod
    def _encode(self, text: str) -> Tokens:
        """The tokens of a text in which nothing is special."""

    @abstractmethod
    def decode(self, tokens: TokenIds) -> str:
        """The text of some tokens; bytes that are no character become U+FFFD."""

    @abstractmethod
    def stream(self, after: TokenIds = ()) -> DecodeStream:
        """A new stream, for text that is made token by token.

        Args:
            after: the tokens that it goes on from, whose text is known already. What a word looks like may hang on
                them: Llama's have a space before them, but not where a text begins.
        """

    @abstractmethod
    def to_json(self) -> str:
        """What `save` writes."""

    def save(self, path: str | Path) -> None:
        """Write the tokenizer to a JSON file that `load_tokenizer` reads."""
        write_atomically(path, self.to_json())

    def check_token(self, token: int) -> int:
        """Refuse what is not a token of this vocabulary."""
        if not is_integer(token, least=0) or token >= self.vocab_size:
            raise TokenError(f"{token!r} is not a token: the vocabulary has the ids 0 to {self.vocab_size - 1}")
        return int(token)

    def check_tokens(self, tokens: TokenIds) -> NDArray[np.int64]:
        """Refuse what is not tokens of this vocabulary; returns them as one array."""
        ids = np.asarray(tokens)
        if ids.size == 0:
            return np.zeros(0, dtype=np.int64)
        if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
            raise DtypeError(
                f"tokens are a row of whole numbers, but got {ids.dtype} of shape {ids.shape}\n"
                f"fix: decode one row at a time"
            )
        for extreme in (int(ids.min()), int(ids.max())):
            self.check_token(extreme)
        return ids.astype(np.int64)


def split_special(text: str, names: Iterable[str]) -> list[str]:
    """The text in parts: names are parts of their own, the longer one where two begin at one place.

    >>> split_special("one<|end|>two", ["<|end|>"]), split_special("", ["<|end|>"])
    (['one', '<|end|>', 'two'], [''])
    """
    check_text(text)
    longest_first = sorted(names, key=len, reverse=True)
    parts = re.split(f"({'|'.join(map(re.escape, longest_first))})", text) if longest_first else [text]
    return [part for part in parts if part] or [""]


def smallest_dtype(vocab_size: int) -> np.dtype[np.unsignedinteger]:
    """The smallest type of whole numbers for ids below `vocab_size`.

    >>> smallest_dtype(256), smallest_dtype(257)
    (dtype('uint8'), dtype('uint16'))
    """
    return np.min_scalar_type(vocab_size - 1)


def encode_utf8(text: str) -> bytes:
    """The bytes of a text; half a surrogate pair, which Python's texts can hold, is no character and is refused."""
    check_text(text)
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise TokenError(
            f"the text has half a character at position {error.start}: U+{ord(text[error.start]):04X} in "
            f"{excerpt(text, error.start)}\nfix: text.encode('utf-8', 'replace').decode() puts '?' in its place"
        ) from None


def check_text(text: object) -> None:
    if not isinstance(text, str):
        raise DtypeError(f"text is a str, but got {type(text).__name__}\nfix: decode bytes first: data.decode('utf-8')")


def excerpt(text: str, place: int, reach: int = 20) -> str:
    """The words around a place in a text, for a message."""
    start, stop = max(0, place - reach), place + reach
    return f"{'…' * (start > 0)}{printable_repr(text[start:stop])}{'…' * (stop < len(text))}"


def printable_repr(text: str) -> str:
    """A text in quotes that can be printed, whatever is in it."""
    return repr(text).encode("utf-8", "backslashreplace").decode()


class ByteDecodeStream(DecodeStream):
    """Text from tokens that are bytes of UTF-8."""

    def __init__(self, tokenizer: Tokenizer, table: Sequence[bytes]) -> None:
        self._tokenizer = tokenizer
        self._table = table
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        return self._decoder.decode(self._table[self._tokenizer.check_token(token)])

    def finish(self, *, cut: bool = False) -> str:
        return "" if cut else self._decoder.decode(b"", final=True)


def decode_bytes(table: Sequence[bytes], tokens: Iterable[int]) -> str:
    """The text of tokens that are bytes of UTF-8, at once."""
    return b"".join([table[token] for token in tokens]).decode("utf-8", "replace")
