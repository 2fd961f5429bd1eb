"""What every tokenizer can do: text to numbers and back, at once or token by token."""

import codecs
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from normscope.checks import is_whole
from normscope.errors import DtypeError, TokenError
from normscope.files import write_atomically

END = "<|end|>"
"""How the token that ends a document is called."""

DEFAULT_VOCAB_SIZE = 2048
"""How many tokens byte-pair encoding learns, unless told otherwise."""

Ids = Sequence[int] | NDArray[np.integer]
Tokens = NDArray[np.unsignedinteger]


class TextStream(ABC):
    """Tokens in, one by one; text out as soon as it is whole.

    A character whose bytes are spread over several tokens comes out with the last of them. All that `push` and
    `finish` gave, one after the other, is what the tokenizer's `decode` gives.
    """

    @abstractmethod
    def push(self, token: int) -> str:
        """Take the next token; returns the text that is certain now, often of that token, sometimes nothing."""

    def finish(self) -> str:
        """The text that was still waiting for more, with U+FFFD in place of half a character."""
        return ""


class Tokenizer(ABC):
    """Text to token ids and back.

    A text is text: what looks like a special token in it, such as "<|end|>", is spelled out like any other words.
    Special tokens, `end` among them, have no text: `decode` leaves them out.

    Attributes:
        kind: what sort of tokenizer this is, for people to read.
        vocab_size: how many tokens there are.
        end: the id of the token that ends a document; `encode` never gives it.
        notices: what its user should know.
    """

    kind: str
    vocab_size: int
    end: int
    notices: tuple[str, ...] = ()

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger]:
        """The smallest type of whole numbers that holds every token."""
        return smallest_dtype(self.vocab_size)

    @abstractmethod
    def encode(self, text: str) -> Tokens:
        """The tokens of a text, without an end."""

    def encode_many(self, texts: Sequence[str]) -> list[Tokens]:
        """The tokens of several texts, each for itself; some tokenizers are faster so."""
        return [self.encode(text) for text in texts]

    @abstractmethod
    def decode(self, tokens: Ids) -> str:
        """The text of some tokens; bytes that are no character become U+FFFD."""

    @abstractmethod
    def stream(self, after: Ids = ()) -> TextStream:
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
        if not is_whole(token, least=0) or token >= self.vocab_size:
            raise TokenError(f"{token!r} is not a token: the vocabulary has the ids 0 to {self.vocab_size - 1}")
        return int(token)

    def check_tokens(self, tokens: Ids) -> NDArray[np.int64]:
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


def smallest_dtype(vocab_size: int) -> np.dtype[np.unsignedinteger]:
    """The smallest type of whole numbers for ids below `vocab_size`.

    >>> smallest_dtype(256), smallest_dtype(257)
    (dtype('uint8'), dtype('uint16'))
    """
    return np.min_scalar_type(vocab_size - 1)


def utf8(text: str) -> bytes:
    """The bytes of a text; half a surrogate pair, which Python's texts can hold, is no character and is refused."""
    check_text(text)
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise TokenError(
            f"the text has half a character at position {error.start}: U+{ord(text[error.start]):04X} in "
            f"{around(text, error.start)}\nfix: text.encode('utf-8', 'replace').decode() puts '?' in its place"
        ) from None


def check_text(text: object) -> None:
    if not isinstance(text, str):
        raise DtypeError(f"text is a str, but got {type(text).__name__}\nfix: decode bytes first: data.decode('utf-8')")


def around(text: str, place: int, reach: int = 20) -> str:
    """The words around a place in a text, for a message."""
    start, stop = max(0, place - reach), place + reach
    return f"{'…' * (start > 0)}{ascii_safe(text[start:stop])}{'…' * (stop < len(text))}"


def ascii_safe(text: str) -> str:
    """A text in quotes that can be printed, whatever is in it."""
    return repr(text).encode("utf-8", "backslashreplace").decode()


class ByteStream(TextStream):
    """Text from tokens that are bytes of UTF-8."""

    def __init__(self, tokenizer: Tokenizer, table: Sequence[bytes]) -> None:
        self._tokenizer = tokenizer
        self._table = table
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        return self._decoder.decode(self._table[self._tokenizer.check_token(token)])

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


def joined(table: Sequence[bytes], tokens: Iterable[int]) -> str:
    """The text of tokens that are bytes of UTF-8, at once."""
    return b"".join([table[token] for token in tokens]).decode("utf-8", "replace")
