"""Byte-level BPE tokenizers from the tables of other tools: tiktoken's ranks, GPT-2's merges."""

from collections.abc import Iterable, Iterator, Mapping

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from normscope.data.tokenizers.huggingface import HuggingFaceTokenizer, bytes_to_unicode
from normscope.errors import ConfigError, FileError
from normscope.interop.files.tiktoken_pickle import TiktokenRanks

MAX_TOKEN_BYTES = 1024
"""The longest tokens in use are runs of a hundred spaces; finding a merge takes the square of the length."""


def tokenizer_from_ranks(given: TiktokenRanks) -> HuggingFaceTokenizer:
    """Build the tokenizer of a tiktoken encoding, with the same ids.

    tiktoken merges any two neighbors that are a token together, lowest rank first; `tokenizers` merges listed pairs, in
    their order. A token that is made of others with lower ranks, as BPE training yields, is only ever merged from the
    two parts that its own bytes are merged to. Other tokens can only be a whole word, which both look up first.
    """
    table = bytes_to_unicode()
    longest = max(map(len, given.ranks), default=0)
    if longest > MAX_TOKEN_BYTES:
        raise FileError(f"the tokenizer has a token of {longest:,} bytes\nfix: use tokens of at most {MAX_TOKEN_BYTES}")
    text = {token: "".join(table[byte] for byte in token) for token in given.ranks}
    vocabulary = {text[token]: rank for token, rank in given.ranks.items()}
    merges = [(text[a], text[b]) for a, b in _merges(given.ranks)]
    model = models.BPE(vocab=vocabulary, merges=merges, ignore_merges=True)
    pattern = pre_tokenizers.Split(_compiled(given.pattern), behavior="isolated")
    words = pre_tokenizers.Sequence([pattern, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    return _byte_level(model, words, given.special_tokens)


def tokenizer_from_merges(vocabulary: Mapping[str, int], merges: Iterable[tuple[str, str]]) -> HuggingFaceTokenizer:
    """Build GPT-2's tokenizer from its vocabulary and merges; the last token is end-of-text."""
    ids, name = dict(vocabulary), "<|endoftext|>"
    special = {name: ids.pop(name)} if name in ids else {}
    try:
        model = models.BPE(vocab=ids, merges=list(merges))
    except Exception as error:  # the library raises nothing narrower
        raise FileError(
            f"the merges do not fit the vocabulary: {error}\nfix: use files of the same tokenizer"
        ) from error
    return _byte_level(model, pre_tokenizers.ByteLevel(add_prefix_space=False), special)


def _byte_level(
    model: models.BPE, words: pre_tokenizers.PreTokenizer, special: Mapping[str, int]
) -> HuggingFaceTokenizer:
    library = tokenizers.Tokenizer(model)
    library.pre_tokenizer, library.decoder = words, decoders.ByteLevel()
    names = sorted(special, key=lambda name: special[name])
    library.add_special_tokens([tokenizers.AddedToken(name, special=True, normalized=False) for name in names])
    for name, token in special.items():
        if library.token_to_id(name) != token:  # the library numbers them after the vocabulary
            raise FileError(
                f"the special token {name!r:.60} has the id {token}, but its place is {library.token_to_id(name)}\n"
                f"fix: number special tokens after all others, without gaps"
            )
    return HuggingFaceTokenizer(library)


def _merges(ranks: Mapping[bytes, int]) -> Iterator[tuple[bytes, bytes]]:
    """The two tokens that each token is merged from, in the order of their ranks."""
    for token in sorted((token for token in ranks if len(token) > 1), key=lambda token: ranks[token]):
        parts = merged(token, ranks, below=ranks[token])
        if len(parts) == 2:
            yield parts[0], parts[1]


def merged(data: bytes, ranks: Mapping[bytes, int], below: float = float("inf")) -> list[bytes]:
    """Merge bytes as tiktoken does: the pair with the lowest rank first, the leftmost of several.

    >>> merged(b"abcab", {b"ab": 0, b"ca": 1, b"abc": 2})
    [b'abc', b'ab']
    """
    parts = [data[i : i + 1] for i in range(len(data))]
    while len(parts) > 1:
        rank, i = min((ranks.get(parts[i] + parts[i + 1], below), i) for i in range(len(parts) - 1))
        if rank >= below:
            break
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return parts


def _compiled(pattern: str) -> tokenizers.Regex:
    try:
        return tokenizers.Regex(pattern)
    except Exception as error:  # the library raises nothing narrower
        raise ConfigError(
            f"the tokenizer splits words by {pattern!r:.80}, which is no valid pattern: {error}"
        ) from None
