"""A tokenizer made of tiktoken's ranks gives tiktoken's ids, and decodes to tiktoken's bytes, on any Unicode."""

import random
from collections import Counter
from itertools import pairwise

import pytest
import tiktoken

from normscope.errors import NormscopeError
from normscope.interop.files.tiktoken_pickle import TiktokenRanks
from normscope.interop.nano.tiktoken_bpe import merged, tokenizer_from_merges, tokenizer_from_ranks

NANOCHAT = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
GPT4 = NANOCHAT.replace("{1,2}", "{1,3}")
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CORPUS = "The cat's hat, the bat's 1234 hats; naïve Ångström   \n\n\tschön: 我们喜欢读书。我们 we'll WE'LL éé aaaa"
SPECIAL = ("<|bos|>", "<|user_start|>")
RANGES = (
    (32, 127),
    (32, 127),
    (9, 14),
    (0xA0, 0x250),
    (0x300, 0x530),
    (0x4E00, 0x4E80),
    (0x1F600, 0x1F650),
    (1, 0xD800),
)


def trained_ranks(count: int) -> dict[bytes, int]:
    """Byte pairs as BPE finds them, in no particular words."""
    ranks = {bytes([(byte * 7 + 3) % 256]): byte for byte in range(256)}  # bytes are in no order, as in GPT-2
    parts = [bytes([byte]) for byte in (CORPUS * 3).encode()]
    while len(ranks) < 256 + count:
        pairs = Counter(pairwise(parts))
        pair = max(sorted(pairs), key=lambda pair: pairs[pair])
        ranks[b"".join(pair)] = len(ranks)
        parts = merged((CORPUS * 3).encode(), ranks)
    return ranks


def texts(count: int) -> list[str]:
    """Random Unicode of several scripts, and parts of the corpus."""
    draw, found = random.Random(0), []
    for _ in range(count):
        ranges = draw.choices(RANGES, k=draw.randint(1, 30))
        noise = "".join(chr(draw.randrange(low, high)) for low, high in ranges)
        start = draw.randrange(len(CORPUS))
        found.append(noise + CORPUS[start : start + draw.randint(0, 12)] + noise[:3])
    return [*found, CORPUS, "", " ", "\r\n", "<|bos|>", "a" * 50]


@pytest.mark.parametrize("pattern", [NANOCHAT, GPT4, GPT2], ids=["nanochat", "gpt4", "gpt2"])
def test_ids_and_text_are_tiktokens(pattern: str) -> None:
    ranks = trained_ranks(60)
    special = {name: len(ranks) + i for i, name in enumerate(SPECIAL)}
    theirs = tiktoken.Encoding("small", pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)
    ours = tokenizer_from_ranks(TiktokenRanks("small", pattern, ranks, special))
    assert ours.vocab_size == theirs.n_vocab == 318
    assert ours.token_bytes[:316] == [theirs.decode_single_token_bytes(token) for token in range(316)]
    for text, ids in zip(texts(150), ours.encode_many(texts(150)), strict=True):
        assert ids.tolist() == theirs.encode_ordinary(text), text
        assert ours.decode(ids) == text
    mixed = "<|bos|>the cat<|user_start|>"
    assert ours.encode(mixed, allow_special=True).tolist() == theirs.encode(mixed, allowed_special="all")


def test_tokens_that_no_merge_makes_are_whole_words() -> None:
    ranks = {bytes([byte]): byte for byte in range(256)} | {b"whole": 256, b"ab": 257, b"bc": 258}
    theirs = tiktoken.Encoding("odd", pat_str=r"\w+|\W+", mergeable_ranks=ranks, special_tokens={})
    ours = tokenizer_from_ranks(TiktokenRanks("odd", r"\w+|\W+", ranks, {}))
    for text in ("whole", "wholes", "abc", "bcab", "abab whole"):
        assert ours.encode(text).tolist() == theirs.encode_ordinary(text)


def test_gpt2s_merges() -> None:
    vocabulary = {name: i for i, name in enumerate(["a", "b", "ab", "<|endoftext|>"])}
    tokenizer = tokenizer_from_merges(vocabulary, [("a", "b")])
    assert tokenizer.encode("abba").tolist() == [2, 1, 0]
    assert tokenizer.eos_token_id == 3


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (TiktokenRanks("bad", r"(\w+", {b"a": 0}, {}), "which is no valid pattern"),
        (TiktokenRanks("long", r"\w+", {b"a" * 2000: 0}, {}), "has a token of 2,000 bytes"),
        (TiktokenRanks("gap", r"\w+", {b"a": 0, b"b": 1}, {"<|bos|>": 7}), "has the id 7, but its place is 2"),
    ],
)
def test_refusals(given: TiktokenRanks, words: str) -> None:
    with pytest.raises(NormscopeError, match=words):
        tokenizer_from_ranks(given)
