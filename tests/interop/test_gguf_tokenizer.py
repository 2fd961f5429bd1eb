"""The tokenizer of a GGUF file has the ids and texts of the one that was converted."""

from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from normscope.errors import WeightsError
from normscope.interop.gguf.tokenizer import read_gguf_tokenizer

TEXT = "It's 1984, and the theme of the thesis isn't 12345 then; Straße naïve  tabs\tand\n\nlines 東京 😀 don't DON'T. "
WORD = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA_3 = rf"{WORD}|\p{{N}}{{1,3}}|{REST}"
ORIGINALS: dict[str, Any] = {
    "gpt-2": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "smollm": pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
    "llama-bpe": pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(LLAMA_3), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    ),
    "qwen2": pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(LLAMA_3.replace("{1,3}", "")), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    ),
}
"""The pre-tokenizers of the models, by llama.cpp's names."""


def byte_level(pre: str) -> tokenizers.Tokenizer:
    library = tokenizers.Tokenizer(models.BPE(ignore_merges=pre == "llama-bpe"))
    library.pre_tokenizer, library.decoder = ORIGINALS[pre], decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=["<|endoftext|>", "<|im_start|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library.train_from_iterator([TEXT] * 3, trainer)
    library.encode_special_tokens = True
    return library


def metadata_of(library: tokenizers.Tokenizer, pre: str) -> dict[str, Any]:
    """The metadata as the converter writes it."""
    import json

    content = json.loads(library.to_str())
    vocabulary = sorted(library.get_vocab().items(), key=lambda item: item[1])
    special = {one["id"] for one in content["added_tokens"]}
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [token for token, _ in vocabulary],
        "tokenizer.ggml.token_type": [3 if i in special else 1 for _, i in vocabulary],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in content["model"]["merges"]],
    }


PAIRS = {pre: (byte_level(pre), read_gguf_tokenizer(metadata_of(byte_level(pre), pre))) for pre in ORIGINALS}
WORDS = ("the", "then", " ", "  ", "\n", "'s", "'LL", "12", "345", "é", "東", "😀", "<|im_start|>", "_", "\u0301")


@pytest.mark.parametrize("pre", ORIGINALS)
@settings(max_examples=60, deadline=None)
@given(text=st.one_of(st.text(max_size=20), st.lists(st.sampled_from(WORDS), max_size=8).map("".join)))
def test_byte_level_tokenizers_have_the_same_ids(pre: str, text: str) -> None:
    original, read = PAIRS[pre]
    assert read is not None
    ids = read.encode(text)
    assert ids.tolist() == original.encode(text, add_special_tokens=False).ids
    assert read.decode(ids) == text


def test_special_tokens_are_those_of_the_kind_control() -> None:
    _, read = PAIRS["qwen2"]
    assert read is not None
    assert read.special_tokens.keys() >= {"<|endoftext|>", "<|im_start|>"}
    assert len(read.encode("<|im_start|>", allow_special=True)) == 1


def sentencepiece(prefix: bool) -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    """A tokenizer with byte fallback as transformers converts it from SentencePiece, and its metadata."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    letters = sorted({*TEXT.replace(" ", "▁")} - {*"東京😀\n\t"})
    merged = ["▁t", "he", "▁the", "th", "in", "en", "▁then", "▁▁", "'s", "it"]
    pieces += [*letters, *merged]
    scores = [0.0] * (259 + len(letters)) + [-float(i + 1) for i in range(len(merged))]
    ids = {piece: i for i, piece in enumerate(pieces)}
    merges = [
        (piece[:end], piece[end:])
        for piece in merged
        for end in range(1, len(piece))
        if piece[:end] in ids and piece[end:] in ids
    ]
    library = tokenizers.Tokenizer(models.BPE(ids, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    space = normalizers.Replace(" ", "▁")
    library.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), space]) if prefix else space
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    library.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    return library, {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * (len(pieces) - 259)],
        "tokenizer.ggml.add_space_prefix": prefix,
    }


@pytest.mark.parametrize("prefix", [True, False])
@settings(max_examples=60, deadline=None)
@given(text=st.one_of(st.text(max_size=20), st.lists(st.sampled_from(WORDS), max_size=8).map("".join)))
def test_sentencepiece_tokenizers_have_the_same_ids(prefix: bool, text: str) -> None:
    original, metadata = sentencepiece(prefix)
    read = read_gguf_tokenizer(metadata)
    assert read is not None
    ids = read.encode(text)
    assert ids.tolist() == original.encode(text, add_special_tokens=False).ids
    assert read.decode(ids) == text


def test_merges_without_their_tokens_are_left_out() -> None:
    """llama.cpp refuses a vocabulary without merges, so files have some that never apply."""
    metadata = metadata_of(PAIRS["gpt-2"][0], "gpt-2") | {"tokenizer.ggml.merges": ["<|endoftext|> <|endoftext|>"]}
    read = read_gguf_tokenizer(metadata)
    assert read is not None
    assert len(read.encode("the")) == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "bert"}, "tokenizer.ggml.model='bert': expected gpt2 or llama"),
        ({"pre": "unheard-of"}, "tokenizer.ggml.pre='unheard-of': expected one of gpt-2"),
        ({"tokens": ["a", "a"], "token_type": []}, "tokenizer.ggml.tokens has a token twice"),
        ({"tokens": [1, 2]}, "its tokenizer is not valid: Expected `str`"),
        ({"token_type": [1]}, "tokenizer.ggml.token_type has another length"),
        ({"tokens": ["a" * 2**17], "token_type": [1]}, "tokens of absurd length"),
        ({"model": "llama"}, "needs tokenizer.ggml.scores"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    metadata = metadata_of(PAIRS["gpt-2"][0], "gpt-2")
    with pytest.raises(WeightsError, match=message):
        read_gguf_tokenizer(metadata | {f"tokenizer.ggml.{key}": value for key, value in changes.items()})


def test_a_file_without_a_vocabulary_has_no_tokenizer() -> None:
    assert read_gguf_tokenizer({"general.architecture": "llama"}) is None
    assert read_gguf_tokenizer({"tokenizer.ggml.model": "no_vocab"}) is None
