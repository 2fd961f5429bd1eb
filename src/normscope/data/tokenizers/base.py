"""Base classes of tokenizers: encode, decode, and decode token by token."""

import codecs
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from normscope.checks import is_integer
from normscope.errors import ArgumentTypeError, ConfigError, DtypeError, TokenError
from normscope.storage.files import write_atomically

EOS_TOKEN = "<|end|>"
"""The end-of-text token of tokenizers trained here."""

EOS_NAMES = (EOS_TOKEN, "<|endoftext|>")
"""Strings that are parsed as the end-of-text token; most corpora use the second."""

DEFAULT_VOCAB_SIZE = 2048
"""Default vocabulary size of byte-pair encoding."""
MIN_VOCAB_SIZE = 257
"""Its smallest vocabulary: all bytes, and the end-of-text token."""

TokenIds = Sequence[int] | NDArray[np.integer]
Tokens = NDArray[np.unsignedinteger]


class Tokenizer(ABC):
    """Converts between text and token ids.

    Special tokens in a text, such as "<|end|>", are encoded as ordinary text unless `allow_special` is set. `decode`
    omits special tokens.

    Attributes:
        kind: name of the kind of tokenizer.
        vocab_size: number of tokens.
        eos_token_id: id of the end-of-text token; `encode` returns it only with `allow_special`.
        has_eos: whether there is one; otherwise `eos_token_id` raises an error.
        notices: warnings for the user.
        chat_template: Jinja template of conversations; None if the tokenizer has none.
        template_variables: special tokens that the template uses, such as bos_token.
    """

    kind: str
    vocab_size: int
    eos_token_id: int
    has_eos: bool = True
    notices: tuple[str, ...] = ()
    chat_template: str | None = None
    template_variables: Mapping[str, str] = MappingProxyType({})

    @property
    def eos_token(self) -> str:
        """The end-of-text token as `encode` parses it with `allow_special`; empty if there is none."""
        return EOS_TOKEN if self.has_eos else ""

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger]:
        """Smallest unsigned dtype that holds every token id."""
        return smallest_dtype(self.vocab_size)

    @property
    def special_tokens(self) -> dict[str, int]:
        """Ids of the special tokens by name; all EOS_NAMES map to `eos_token_id`."""
        return dict.fromkeys(EOS_NAMES, self.eos_token_id) if self.has_eos else {}

    @property
    def start_tokens(self) -> tuple[int, ...]:
        """The tokens that stand before every text, such as Llama's <|begin_of_text|>; usually none."""
        return ()

    @property
    def start_token_id(self) -> int:
        """The token that stands before an empty prompt: end-of-text, or the first token if the vocabulary has none."""
        return self.start_tokens[-1] if self.start_tokens else self.eos_token_id if self.has_eos else 0

    def with_start(self, tokens: Tokens) -> Tokens:
        """Put the start tokens before the tokens of a text that has not got them."""
        start = np.array(self.start_tokens, self.dtype)
        return tokens if np.array_equal(tokens[: len(start)], start) else np.concatenate([start, tokens])

    @cached_property
    @abstractmethod
    def token_bytes(self) -> Sequence[bytes]:
        """UTF-8 bytes of each token; none for a special token."""

    def encode(self, text: str, *, allow_special: bool = False) -> Tokens:
        """Encode a text, without an end-of-text token.

        Args:
            text: the text.
            allow_special: parse the names of special tokens. Leave it off for untrusted text, which could otherwise end
                a document.
        """
        return self.encode_many([text], allow_special=allow_special)[0]

    def encode_many(self, texts: Sequence[str], *, allow_special: bool = False) -> list[Tokens]:
        """Encode several texts; faster than one by one for some tokenizers."""
        if not allow_special:
            return self._encode_many(texts)
        special = self.special_tokens
        parts = [split_special(text, special) for text in texts]
        plain = iter(self._encode_many([part for one in parts for part in one if part not in special]))
        return [
            np.concatenate([np.array([special[part]], self.dtype) if part in special else next(plain) for part in one])
            for one in parts
        ]

    def encode_with_spans(self, text: str) -> tuple[Tokens, NDArray[np.int64]]:
        """Encode a text, special tokens parsed; return the tokens, and start and stop of each one's characters.

        A character of several tokens is in the span of each.
        """
        special, ids, sizes = self.special_tokens, list[Tokens](), list[int]()
        for part in split_special(text, special):
            tokens = np.array([special[part]], self.dtype) if part in special else self._encode(part)
            ids.append(tokens)
            table = self.token_bytes
            sizes += [len(part.encode())] if part in special else [len(table[token]) for token in tokens.tolist()]
        lengths = [len(character.encode()) for character in text]
        character_of = np.repeat(np.arange(len(text)), lengths)
        stops = np.cumsum(np.array(sizes, dtype=np.int64))
        starts = stops - np.array(sizes, dtype=np.int64)
        spans = np.stack([character_of[starts], character_of[stops - 1] + 1], axis=1) if text else np.zeros((0, 2), int)
        return np.concatenate(ids), spans.astype(np.int64)

    def _encode_many(self, texts: Sequence[str]) -> list[Tokens]:
        return [self._encode(text) for text in texts]

    @abstractmethod
    def _encode(self, text: str) -> Tokens:
        """Encode a text without special tokens."""

    def decode(self, tokens: TokenIds) -> str:
        """Decode tokens; invalid bytes become U+FFFD."""
        table = self.token_bytes
        return b"".join([table[token] for token in self.check_tokens(tokens).tolist()]).decode("utf-8", "replace")

    def stream(self, after: TokenIds = ()) -> "DecodeStream":
        """Create an incremental decoder.

        Args:
            after: the preceding tokens, already decoded. They may affect the next text: Llama's tokenizer puts
                a space before a word, except at the start of a text.
        """
        return DecodeStream(self)

    @abstractmethod
    def to_json(self) -> str:
        """Return the contents of the file that `save` writes."""

    def save(self, path: str | Path) -> None:
        """Write the tokenizer to a JSON file that `load_tokenizer` reads."""
        write_atomically(path, self.to_json())

    def check_token(self, token: int) -> int:
        """Raise if this is not a token id of the vocabulary."""
        if not is_integer(token, least=0) or token >= self.vocab_size:
            raise TokenError(f"{token!r} is not a token id: expected 0 to {self.vocab_size - 1}")
        return int(token)

    def check_tokens(self, tokens: TokenIds) -> NDArray[np.int64]:
        """Validate token ids and return them as an array."""
        ids = np.asarray(tokens)
        if ids.size == 0:
            return np.zeros(0, dtype=np.int64)
        if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
            raise DtypeError(
                f"tokens must be a 1-D integer sequence, but got {ids.dtype} of shape {ids.shape}\n"
                f"fix: decode one row at a time"
            )
        for extreme in (int(ids.min()), int(ids.max())):
            self.check_token(extreme)
        return ids.astype(np.int64)


class DecodeStream:
    """Incremental decoder: takes tokens one by one and returns text as soon as it is complete.

    A character whose bytes span several tokens is returned with the last of them. The concatenated results of `push`
    and `finish` equal `Tokenizer.decode` of all tokens.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer, self._decoder = tokenizer, codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """Add the next token and return the text that is complete now, possibly empty."""
        return self._decoder.decode(self._tokenizer.token_bytes[self._tokenizer.check_token(token)])

    def finish(self, *, cut: bool = False) -> str:
        """Return the remaining text.

        Args:
            cut: the text was truncated here: drop an incomplete character at its end. Otherwise it becomes U+FFFD, like
                all invalid bytes.
        """
        return "" if cut else self._decoder.decode(b"", final=True)


def no_eos_error() -> ConfigError:
    """The error for a tokenizer without an end-of-text token."""
    return ConfigError(
        "this vocabulary has no end-of-text token\n"
        "fix: use a model whose vocabulary has one, such as those that normscope trains"
    )


def split_special(text: str, names: Iterable[str]) -> list[str]:
    """Split a text at the names of special tokens, which become parts of their own; the longest match wins.

    >>> split_special("one<|end|>two", ["<|end|>"]), split_special("", ["<|end|>"])
    (['one', '<|end|>', 'two'], [''])
    """
    check_text(text)
    longest_first = sorted(names, key=len, reverse=True)
    parts = re.split(f"({'|'.join(map(re.escape, longest_first))})", text) if longest_first else [text]
    return [part for part in parts if part] or [""]


def smallest_dtype(vocab_size: int) -> np.dtype[np.unsignedinteger]:
    """Return the smallest unsigned dtype for ids below `vocab_size`.

    >>> smallest_dtype(256), smallest_dtype(257)
    (dtype('uint8'), dtype('uint16'))
    """
    return np.min_scalar_type(vocab_size - 1)


def encode_utf8(text: str) -> bytes:
    """Encode a text as UTF-8; raise a TokenError for lone surrogates."""
    check_text(text)
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise TokenError(
            f"lone surrogate U+{ord(text[error.start]):04X} at position {error.start} of the text: "
            f"{excerpt(text, error.start)}\nfix: text.encode('utf-8', 'replace').decode() replaces it by '?'"
        ) from None


def check_text(text: object) -> None:
    if not isinstance(text, str):
        raise ArgumentTypeError(
            f"text must be a str, but got {type(text).__name__}\nfix: decode bytes first: data.decode('utf-8')"
        )


def excerpt(text: str, position: int, reach: int = 20) -> str:
    """Return the text around a position, for a message."""
    start, stop = max(0, position - reach), position + reach
    return f"{'…' * (start > 0)}{printable_repr(text[start:stop])}{'…' * (stop < len(text))}"


def printable_repr(text: str) -> str:
    """Return a repr that can be printed even if the text has lone surrogates."""
    return repr(text).encode("utf-8", "backslashreplace").decode()


def check_vocab_size(vocab_size: int) -> None:
    """Raise if the vocabulary of a byte-pair encoding is too small for all bytes."""
    if not is_integer(vocab_size, least=MIN_VOCAB_SIZE):
        raise ConfigError(
            f"vocab_size={vocab_size!r} must be an integer >= {MIN_VOCAB_SIZE}: 256 bytes and the end-of-text token\n"
            f"fix: vocab_size={DEFAULT_VOCAB_SIZE}, or tokenizer='bytes', which has only these"
        )
