"""Tokenizers of Hugging Face's library, in its own tokenizer.json: trained here, or GPT-2's, or Llama's."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np
import tokenizers

from normscope.data.tokenizers.base import (
    EOS_TOKEN,
    ByteDecodeStream,
    DecodeStream,
    TokenIds,
    Tokenizer,
    Tokens,
    decode_bytes,
    encode_utf8,
    excerpt,
    printable_repr,
)
from normscope.data.tokenizers.byte_alphabet import bytes_to_unicode, token_bytes
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
)
"""What others call the token that ends a document, first choice first."""

MAX_TOKEN_IDS = 2**22
"""The largest vocabularies have about a million tokens; tables as long as the largest id must fit in memory."""

_PARALLELISM = "TOKENIZERS_PARALLELISM"
_CHOSEN_BY_USER = _PARALLELISM in os.environ
_THIS_PROCESS = os.getpid()
# The library's threads do not survive a fork, of which it warns unless this is set. They run where they help, below.
os.environ.setdefault(_PARALLELISM, "false")


@contextmanager
def parallel_tokenization() -> Iterator[None]:
    """Let the library use its threads meanwhile, unless its user has decided; in a fork they are dead."""
    if _CHOSEN_BY_USER or os.getpid() != _THIS_PROCESS:
        yield
        return
    os.environ[_PARALLELISM] = "true"
    try:
        yield
    finally:
        os.environ[_PARALLELISM] = "false"


class HuggingFaceTokenizer(Tokenizer):
    """A tokenizer of the library's.

    The end of a document is the token that others use for it (`<|end|>`, `<|endoftext|>`, `</s>`, ...). If there is
    none, `<|end|>` is added to the vocabulary, and a notice says so.

    >>> from normscope.data.tokenizers.bpe import train_bpe
    >>> tokenizer = train_bpe(["to be or not to be"], vocab_size=260)
    >>> tokenizer.kind, tokenizer.vocab_size
    ('bpe', 260)
    >>> tokenizer.decode(tokenizer.encode("not to worry"))
    'not to worry'
    """

    def __init__(self, library: tokenizers.Tokenizer) -> None:
        self._library = library
        _check_ids(library)
        library.no_truncation()
        library.no_padding()
        library.encode_special_tokens = True  # text is text: "<|end|>" in it ends nothing
        settings: dict[str, Any] = json.loads(library.to_str())
        if settings["model"].get("dropout"):
            library.model.dropout = None  # the same text has the same tokens
        self.kind = str(settings["model"].get("type", "BPE")).lower()
        self.eos_token_id = self._find_eos()
        self.vocab_size = max(library.get_vocab().values()) + 1  # there may be gaps
        self._special = {token for token, added in library.get_added_tokens_decoder().items() if added.special}
        self._unknown = _unknown_token(settings["model"], library)
        self._in_bytes = (settings["decoder"] or {}).get("type") == "ByteLevel"

    @property
    def special_tokens(self) -> dict[str, int]:
        added = self._library.get_added_tokens_decoder().items()
        return super().special_tokens | {one.content: token for token, one in added if one.special}

    def _encode(self, text: str) -> Tokens:
        return self._encode_many([text])[0]

    def _encode_many(self, texts: Sequence[str]) -> list[Tokens]:
        for text in texts:
            self._check(text)
        try:
            with parallel_tokenization():
                encodings = self._library.encode_batch_fast(list(texts), add_special_tokens=False)
        except Exception as error:  # the library raises no narrower one
            raise TokenError(f"the tokenizer cannot encode the text: {error}\nfix: use another tokenizer") from error
        found = [np.array(encoding.ids, dtype=self.dtype) for encoding in encodings]
        if self._unknown is not None:
            for text, ids in zip(texts, found, strict=True):
                if (ids == self._unknown).any():
                    encoding = self._library.encode(text, add_special_tokens=False)
                    raise self._cannot(text, *encoding.offsets[encoding.ids.index(self._unknown)])
        return found

    def decode(self, tokens: TokenIds) -> str:
        ids = self.check_tokens(tokens).tolist()
        if self._in_bytes:
            return decode_bytes(self._bytes, ids)
        # Word by word too: what a word looks like may hang on those after it, so all at once could differ from that.
        stream = self.stream()
        return "".join([*map(stream.push, ids), stream.finish()])

    def stream(self, after: TokenIds = ()) -> DecodeStream:
        if self._in_bytes:
            return ByteDecodeStream(self, self._bytes)
        before = [token for token in self.check_tokens(after).tolist() if token not in self._special]
        return _WordDecodeStream(self, self._library, self._special, before)

    def to_json(self) -> str:
        return self._library.to_str(pretty=True) + "\n"

    @cached_property
    def _bytes(self) -> list[bytes]:
        """The bytes of each token, if the tokens are bytes that are written as letters."""
        table = [b""] * self.vocab_size
        for word, token in self._library.get_vocab().items():
            table[token] = b"" if token in self._special else token_bytes(word)
        return table

    @cached_property
    def _missing(self) -> frozenset[int]:
        """The bytes that a vocabulary of bytes does not have; most have all of them."""
        have = self._library.get_vocab() if self._in_bytes else bytes_to_unicode()
        return frozenset(byte for byte, letter in enumerate(bytes_to_unicode()) if letter not in have)

    def _check(self, text: str) -> None:
        data = encode_utf8(text)
        if self._missing and not self._missing.isdisjoint(data):  # the library would leave them out without a word
            places = (i for i, character in enumerate(text) if not self._missing.isdisjoint(character.encode()))
            place = next(places)
            raise self._cannot(text, place, place + 1)

    def _cannot(self, text: str, start: int, stop: int) -> TokenError:
        return TokenError(
            f"the tokenizer has no token for {printable_repr(text[start:stop])} at position {start} of the text: "
            f"{excerpt(text, start)}\nfix: leave it out, or use the tokenizer 'bytes' or 'bpe', which know all"
        )

    def _find_eos(self) -> int:
        name = next((name for name in _KNOWN_EOS_NAMES if self._library.token_to_id(name) is not None), None)
        if name is None:
            name = EOS_TOKEN
            self.notices = (
                f"the tokenizer has no token that ends a document, so {EOS_TOKEN} was added to its vocabulary",
            )
        self._library.add_special_tokens([name])  # also one that is there: some files forget to say that it is special
        token = self._library.token_to_id(name)
        assert token is not None
        # The library gives a new token the number of tokens as its id, which may be taken if there are gaps.
        same = [word for word, other in self._library.get_vocab().items() if other == token and word != name]
        if same:
            raise ConfigError(
                f"the token {name}, which ends a document, would have the id {token}, and so has {same[0]!r}\n"
                f"fix: give each word an id of its own, from 0 on and without gaps; {EOS_TOKEN} among them"
            )
        return token


class _WordDecodeStream(DecodeStream):
    """Text from tokens whose looks hang on their neighbours: the space before a word, or bytes that make a character.

    It decodes the newest token together with those of the text before, and gives what that adds.
    """

    PATIENCE = 8
    """How many tokens half a character may wait for its rest; it has four bytes at most."""

    def __init__(
        self, tokenizer: Tokenizer, library: tokenizers.Tokenizer, special: set[int], before: Sequence[int]
    ) -> None:
        self._tokenizer = tokenizer
        self._library = library
        self._special = special
        self._before = self._newest(before)  # whose text has been given, all but that of the newest long since
        self._waiting: list[int] = []

    def push(self, token: int) -> str:
        if self._tokenizer.check_token(token) in self._special:
            return ""
        self._waiting.append(int(token))
        whole = self._library.decode(self._before + self._waiting)
        if whole.endswith("\N{REPLACEMENT CHARACTER}") and len(self._waiting) < self.PATIENCE:
            return ""
        return self._give(whole)

    def finish(self, *, cut: bool = False) -> str:
        rest = self._give(self._library.decode(self._before + self._waiting))
        return rest.rstrip("\N{REPLACEMENT CHARACTER}") if cut else rest

    def _newest(self, before: Sequence[int]) -> list[int]:
        """As few of the newest tokens as have a text that is whole: the last one, or the bytes of a last character."""
        for count in range(1, self.PATIENCE + 1):
            newest = list(before[-count:])
            if not self._library.decode(newest).startswith("\N{REPLACEMENT CHARACTER}"):
                return newest
        return list(before[-1:])

    def _give(self, whole: str) -> str:
        known = self._library.decode(self._before)
        if self._waiting:
            self._before, self._waiting = self._waiting, []
        return whole[len(known) :]


def _unknown_token(model: dict[str, Any], library: tokenizers.Tokenizer) -> int | None:
    """The token that stands for what the vocabulary does not have, if there is one."""
    if model.get("unk_id") is not None:
        return int(model["unk_id"])
    name = model.get("unk_token")
    return library.token_to_id(name) if name else None


def _check_ids(library: tokenizers.Tokenizer) -> None:
    """Refuse ids that no table could be made for. The library itself goes through all ids to write its settings."""
    largest = max(library.get_vocab().values(), default=0)
    if largest >= MAX_TOKEN_IDS:
        raise ConfigError(
            f"it has the token id {largest:,}, and ids must be below {MAX_TOKEN_IDS:,}\n"
            f"fix: give the tokens ids from 0 on"
        )
