"""Tokenizers of Hugging Face's `tokenizers` library: trained here, or any tokenizer.json such as GPT-2's or Llama's."""

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, cached_property
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import decoders, models, pre_tokenizers, trainers

from normscope.data.tokenizers.base import (
    DEFAULT_VOCAB_SIZE,
    EOS_TOKEN,
    DecodeStream,
    TokenIds,
    Tokenizer,
    Tokens,
    check_vocab_size,
    encode_utf8,
    excerpt,
    no_eos_error,
    printable_repr,
)
from normscope.data.tokenizers.load import OWN_SETTINGS
from normscope.errors import ConfigError, TokenError

_KNOWN_EOS_NAMES = (
    EOS_TOKEN,
    "<|endoftext|>",
    "</s>",
    "<|end_of_text|>",
    "<eos>",
    "<|eos|>",
    "[EOS]",
    "<|im_end|>",
    "<｜end▁of▁sentence｜>",
    "<|bos|>",  # nanochat's, which delimits documents
)
"""Common names of the end-of-text token, in order of preference."""

MAX_TOKEN_IDS = 2**22
"""Limit of token ids: tables as long as the largest id must fit in memory; vocabularies have up to a million."""

MAX_START_TOKENS = 64
"""Limit of the tokens before every text; models have one."""

_PARALLELISM = "TOKENIZERS_PARALLELISM"
_SET_BY_USER = _PARALLELISM in os.environ
_THIS_PROCESS = os.getpid()
# The library's threads do not survive a fork; it warns unless this is set. `parallel_tokenization` turns them on.
os.environ.setdefault(_PARALLELISM, "false")


@contextmanager
def parallel_tokenization() -> Iterator[None]:
    """Let the library use threads, unless the user has set its variable or this is a forked process."""
    if _SET_BY_USER or os.getpid() != _THIS_PROCESS:
        yield
        return
    os.environ[_PARALLELISM] = "true"
    try:
        yield
    finally:
        os.environ[_PARALLELISM] = "false"


@contextmanager
def library_errors() -> Iterator[None]:
    """Raise what the library raises while it encodes as a TokenError, such as for a regular expression without end."""
    try:
        yield
    except BaseException as error:  # the library raises nothing narrower, and its panics are not Exceptions
        if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
            raise
        raise TokenError(f"the tokenizer cannot encode the text: {error}\nfix: use another tokenizer") from error


class HuggingFaceTokenizer(Tokenizer):
    """Wraps a tokenizer of Hugging Face's library.

    The end-of-text token is `eos`, else the first known name in the vocabulary (`<|end|>`, `<|endoftext|>`, `</s>`,
    ...), those of special tokens first. If there is none, `<|end|>` is added, with a notice.

    Args:
        library: the tokenizer.
        eos: name of the end-of-text token, where its files say it.
        is_complete: never add a token: without a known name there is no end-of-text token.

    >>> tokenizer = train_bpe(["to be or not to be"], vocab_size=260)
    >>> tokenizer.kind, tokenizer.vocab_size
    ('bpe', 260)
    >>> tokenizer.decode(tokenizer.encode("not to worry"))
    'not to worry'
    """

    def __init__(self, library: tokenizers.Tokenizer, eos: str | None = None, *, is_complete: bool = False) -> None:
        self._library = library
        _check_ids(library)
        library.no_truncation()
        library.no_padding()
        library.encode_special_tokens = True  # do not parse special tokens in the text
        settings: dict[str, Any] = json.loads(library.to_str())
        if settings["model"].get("dropout"):
            library.model.dropout = None  # encoding must be deterministic
        self.kind = str(settings["model"].get("type", "BPE")).lower()
        known = _known_eos(library)
        name = eos if eos is not None and library.token_to_id(eos) is not None else known
        if name is None and not is_complete:
            name = EOS_TOKEN
            self.notices = (f"the tokenizer has no end-of-text token: added {EOS_TOKEN} to its vocabulary",)
        self._eos = None if name is None else self._mark_special(name)
        self._chosen_eos = None if name is not None and name == _known_eos(library) else {"eos_token": name}
        self.vocab_size = max(library.get_vocab().values(), default=0) + 1  # ids may have gaps
        self._special = {token for token, added in library.get_added_tokens_decoder().items() if added.special}
        self._unknown = _unknown_token(settings["model"], library)
        self._in_bytes = (settings["decoder"] or {}).get("type") == "ByteLevel"

    @property
    def special_tokens(self) -> dict[str, int]:
        added = self._library.get_added_tokens_decoder().items()
        return super().special_tokens | {one.content: token for token, one in added if one.special}

    @property
    def has_eos(self) -> bool:  # type: ignore[override]
        return self._eos is not None

    @property
    def eos_token_id(self) -> int:  # type: ignore[override]
        if self._eos is None:
            raise no_eos_error()
        return self._eos

    @property
    def eos_token(self) -> str:
        return "" if self._eos is None else str(self._library.id_to_token(self._eos))

    @cached_property
    def start_tokens(self) -> tuple[int, ...]:
        """What the library's post-processor puts before a text."""
        if self._library.post_processor is None:
            return ()
        with library_errors():
            found = self._library.encode("a")
        count = next((i for i, special in enumerate(found.special_tokens_mask) if not special), len(found.ids))
        start = found.ids[:count]
        if count > MAX_START_TOKENS or max(start, default=0) >= self.vocab_size:
            raise TokenError(
                f"the tokenizer puts {count:,} tokens before every text, the largest {max(start)}: expected at most "
                f"{MAX_START_TOKENS} of the {self.vocab_size:,} in its vocabulary\nfix: correct its post_processor"
            )
        return tuple(start)

    def encode_with_spans(self, text: str) -> tuple[Tokens, NDArray[np.int64]]:
        self._check(text)
        self._library.encode_special_tokens = False
        try:
            with library_errors():
                encoding = self._library.encode(text, add_special_tokens=False)
        finally:
            self._library.encode_special_tokens = True
        return np.array(encoding.ids, self.dtype), np.array(encoding.offsets, np.int64).reshape(-1, 2)

    def _encode(self, text: str) -> Tokens:
        return self._encode_many([text])[0]

    def _encode_many(self, texts: Sequence[str]) -> list[Tokens]:
        for text in texts:
            self._check(text)
        with library_errors(), parallel_tokenization():
            encodings = self._library.encode_batch_fast(list(texts), add_special_tokens=False)
        found = [np.array(encoding.ids, dtype=self.dtype) for encoding in encodings]
        if self._unknown is not None:
            for text, ids in zip(texts, found, strict=True):
                if (ids == self._unknown).any():
                    encoding = self._library.encode(text, add_special_tokens=False)
                    raise self._cannot_encode(text, *encoding.offsets[encoding.ids.index(self._unknown)])
        return found

    def decode(self, tokens: TokenIds) -> str:
        if self._in_bytes:
            return super().decode(tokens)
        # Also token by token: the text of a token may depend on the next ones, so decoding all at once could differ.
        stream = self.stream()
        return "".join([*map(stream.push, self.check_tokens(tokens).tolist()), stream.finish()])

    def stream(self, after: TokenIds = ()) -> DecodeStream:
        if self._in_bytes:
            return super().stream()
        before = [token for token in self.check_tokens(after).tolist() if token not in self._special]
        return _WordDecodeStream(self, self._library, self._special, before)

    def to_json(self) -> str:
        """Return the library's JSON, with the end-of-text token if its name does not tell."""
        text = self.library_json()
        if self._chosen_eos is None:
            return text
        return f'{{\n  "{OWN_SETTINGS}": {json.dumps(self._chosen_eos)},{text[1:]}'

    def library_json(self) -> str:
        """Return the contents of a tokenizer.json of the library."""
        return str(self._library.to_str(pretty=True)) + "\n"

    @cached_property
    def token_bytes(self) -> Sequence[bytes]:
        """Bytes of each token of a byte-level vocabulary."""
        table = [b""] * self.vocab_size
        for name, token in self._library.get_vocab().items():
            table[token] = b"" if token in self._special else token_bytes(name)
        return table

    @cached_property
    def _missing(self) -> frozenset[int]:
        """Bytes that a byte-level vocabulary lacks; usually none."""
        have = self._library.get_vocab() if self._in_bytes else bytes_to_unicode()
        return frozenset(byte for byte, character in enumerate(bytes_to_unicode()) if character not in have)

    def _check(self, text: str) -> None:
        data = encode_utf8(text)
        if self._missing and not self._missing.isdisjoint(data):  # the library would drop them silently
            positions = (i for i, character in enumerate(text) if not self._missing.isdisjoint(character.encode()))
            position = next(positions)
            raise self._cannot_encode(text, position, position + 1)

    def _cannot_encode(self, text: str, start: int, stop: int) -> TokenError:
        return TokenError(
            f"the tokenizer has no token for {printable_repr(text[start:stop])} at position {start} of the text: "
            f"{excerpt(text, start)}\n"
            f"fix: remove it, or use the tokenizer 'bytes' or 'bpe', which encode every character"
        )

    def _mark_special(self, name: str) -> int:
        """Add the end-of-text token, or mark an existing one as special: some files do not. Return its id."""
        self._library.add_special_tokens([name])
        token = self._library.token_to_id(name)
        assert token is not None
        # The library uses the number of tokens as the new id, which may be taken if ids have gaps.
        same = [word for word, other in self._library.get_vocab().items() if other == token and word != name]
        if same:
            raise ConfigError(
                f"the end-of-text token {name} would get the id {token}, which {same[0]!r} already has\n"
                f"fix: give each token, including {EOS_TOKEN}, a unique id from 0 on, without gaps"
            )
        return int(token)


def train_bpe(texts: Iterable[str], vocab_size: int = DEFAULT_VOCAB_SIZE) -> HuggingFaceTokenizer:
    """Train a byte-level BPE tokenizer; it can encode any text.

    The texts are read once and not kept in memory. Training is deterministic. Short texts may yield fewer tokens than
    `vocab_size`.

    >>> tokenizer = train_bpe(["the cat and the hat and the bat"], vocab_size=268)
    >>> [tokenizer.decode([token]) for token in tokenizer.encode(" and the rat")]
    [' and', ' the', ' ', 'r', 'at']

    Paper:
        Sennrich et al. 2016, "Neural Machine Translation of Rare Words with Subword Units".
    """
    check_vocab_size(vocab_size)
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[EOS_TOKEN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    with parallel_tokenization():
        library.train_from_iterator(iter(texts), trainer)
    return HuggingFaceTokenizer(library)


class _WordDecodeStream(DecodeStream):
    """Incremental decoder for tokens whose text depends on their neighbors: spaces between words, byte fallback.

    Decodes the newest tokens together with the ones before, and returns the difference.
    """

    MAX_PENDING = 8
    """Maximum tokens to wait for an incomplete character, which has at most four bytes."""

    def __init__(
        self, tokenizer: Tokenizer, library: tokenizers.Tokenizer, special: set[int], before: Sequence[int]
    ) -> None:
        super().__init__(tokenizer)
        self._library, self._special = library, special
        self._before = self._newest(before)  # tokens whose text has already been returned
        self._pending: list[int] = []

    def push(self, token: int) -> str:
        if self._tokenizer.check_token(token) in self._special:
            return ""
        self._pending.append(int(token))
        whole = self._library.decode(self._before + self._pending)
        may_be_incomplete = whole.endswith("\N{REPLACEMENT CHARACTER}") and len(self._pending) < self.MAX_PENDING
        if may_be_incomplete and not self._is_complete():
            return ""
        return self._new_text(whole)

    def _is_complete(self) -> bool:
        """Whether the newest tokens are the bytes of complete characters, which may be U+FFFD themselves."""
        names = "".join(str(self._library.id_to_token(token)) for token in self._before + self._pending)
        found = re.search("(?:<0x[0-9A-F]{2}>)+$", names)
        try:
            return found is not None and bool(bytes.fromhex(re.sub("<0x|>", "", found[0])).decode())
        except UnicodeDecodeError:
            return False

    def finish(self, *, cut: bool = False) -> str:
        rest = self._new_text(self._library.decode(self._before + self._pending))
        return rest.rstrip("\N{REPLACEMENT CHARACTER}") if cut else rest

    def _newest(self, before: Sequence[int]) -> list[int]:
        """Return the fewest last tokens whose text is complete."""
        for count in range(1, self.MAX_PENDING + 1):
            newest = list(before[-count:])
            if not self._library.decode(newest).startswith("\N{REPLACEMENT CHARACTER}"):
                return newest
        return list(before[-1:])

    def _new_text(self, whole: str) -> str:
        known = self._library.decode(self._before)
        if self._pending:
            self._before, self._pending = self._pending, []
        return whole[len(known) :]


def _known_eos(library: tokenizers.Tokenizer) -> str | None:
    """The first known name of an end-of-text token, of a special one if there is any: Gemma's </s> is for HTML."""
    found = [name for name in _KNOWN_EOS_NAMES if library.token_to_id(name) is not None]
    special = {one.content for one in library.get_added_tokens_decoder().values() if one.special}
    return next((name for name in found if name in special), found[0] if found else None)


def _unknown_token(model: dict[str, Any], library: tokenizers.Tokenizer) -> int | None:
    """Return the id of the unknown token, if there is one."""
    if model.get("unk_id") is not None:
        return int(model["unk_id"])
    name = model.get("unk_token")
    return library.token_to_id(name) if name else None


def _check_ids(library: tokenizers.Tokenizer) -> None:
    """Raise for ids that are too large for a table. The library itself iterates over all ids to serialize."""
    largest = max(library.get_vocab().values(), default=0)
    if largest >= MAX_TOKEN_IDS:
        raise ConfigError(
            f"it has the token id {largest:,}, but ids must be below {MAX_TOKEN_IDS:,}\nfix: number the tokens from 0"
        )


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
