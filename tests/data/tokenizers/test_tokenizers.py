"""Properties of every tokenizer: round trips, streams match `decode`, save and load."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normscope.data.tokenizers import CharacterTokenizer, Tokenizer, load_tokenizer
from normscope.errors import ArgumentTypeError, DtypeError, TokenError
from tests.data.tokenizers.examples import TEXT, every_tokenizer

seeded = settings(derandomize=True, deadline=None)

TOKENIZERS = every_tokenizer()
each = pytest.mark.parametrize("name", TOKENIZERS)
each_that_knows_all = pytest.mark.parametrize("name", ["bytes", "bpe", "gpt2", "llama"])


def streamed(tokenizer: Tokenizer, tokens: Any) -> list[str]:
    stream = tokenizer.stream()
    return [*(stream.push(token) for token in tokens), stream.finish()]


@each_that_knows_all
@seeded
@given(text=st.text())
def test_any_text_round_trips(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    tokens = tokenizer.encode(text)
    assert tokens.dtype == tokenizer.dtype
    assert tokenizer.eos_token_id not in tokens
    assert tokenizer.decode(tokens) == text


@seeded
@given(text=st.text(min_size=1))
def test_characters_round_trip_text_of_their_alphabet(text: str) -> None:
    tokenizer = CharacterTokenizer.of([text])
    tokens = tokenizer.encode(text)
    assert tokenizer.decode(tokens) == text
    assert len(tokens) == len(text)
    assert [tokenizer.alphabet[token] for token in tokens] == list(text)


@each
@seeded
@given(data=st.data())
def test_a_stream_matches_decode(name: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[name]
    tokens = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=40))
    assert "".join(streamed(tokenizer, tokens)) == tokenizer.decode(tokens)
    assert tokenizer.decode(np.array(tokens, dtype=np.int64)) == tokenizer.decode(tokens)


@each_that_knows_all
@seeded
@given(text=st.text(max_size=30))
def test_a_stream_emits_complete_characters(name: str, text: str) -> None:
    text = text.replace("\N{REPLACEMENT CHARACTER}", "")
    tokenizer = TOKENIZERS[name]
    pieces = streamed(tokenizer, tokenizer.encode(text))
    assert "".join(pieces) == text
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)


@each_that_knows_all
@seeded
@given(text=st.text("the cat 猫🐈\n", min_size=1, max_size=12), data=st.data())
def test_a_stream_continues_earlier_tokens(name: str, text: str, data: st.DataObject) -> None:
    """Wherever a text is cut between two characters: the parts add up to it, spaces too."""
    tokenizer = TOKENIZERS[name]
    tokens = tokenizer.encode(text).tolist()
    whole = [i for i in range(1, len(tokens) + 1) if text.startswith(tokenizer.decode(tokens[:i]))]
    position = data.draw(st.sampled_from(whole))
    stream = tokenizer.stream(tokens[:position])
    rest = [*map(stream.push, tokens[position:]), stream.finish()]
    assert tokenizer.decode(tokens[:position]) + "".join(rest) == text


@each
def test_a_stream_after_an_end_of_text_token(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    tokens = tokenizer.encode("the cat").tolist()
    stream = tokenizer.stream([tokenizer.eos_token_id])
    assert "".join([*map(stream.push, tokens), stream.finish()]) == "the cat"


@each_that_knows_all
def test_text_is_emitted_as_soon_as_it_is_complete(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    stream = tokenizer.stream()
    pieces = [stream.push(int(token)) for token in tokenizer.encode("the \u732b sat")]
    assert "".join(pieces) == "the 猫 sat"
    assert stream.finish() == ""
    assert len([piece for piece in pieces if piece]) > 3


@each
def test_the_end_of_text_token_has_no_text(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    assert 0 <= tokenizer.eos_token_id < tokenizer.vocab_size
    words = tokenizer.encode("the cat")
    assert tokenizer.decode([*words, tokenizer.eos_token_id]) == "the cat"
    assert tokenizer.decode([]) == ""
    assert len(tokenizer.encode("")) == 0


@each_that_knows_all
@pytest.mark.parametrize("word", ["<|end|>", "<|endoftext|>", "</s>", "<unk>"])
def test_special_tokens_are_ordinary_text_by_default(name: str, word: str) -> None:
    tokenizer = TOKENIZERS[name]
    tokens = tokenizer.encode(f"the {word} cat")
    assert tokenizer.eos_token_id not in tokens
    assert tokenizer.decode(tokens) == f"the {word} cat"


@each
def test_save_and_load(name: str, tmp_path: Path) -> None:
    tokenizer = TOKENIZERS[name]
    tokenizer.save(tmp_path / "tokenizer.json")
    again = load_tokenizer(tmp_path)
    assert (again.kind, again.vocab_size, again.eos_token_id) == (
        tokenizer.kind,
        tokenizer.vocab_size,
        tokenizer.eos_token_id,
    )
    text = "the cat sat" if name == "bert" else TEXT
    np.testing.assert_array_equal(again.encode(text), tokenizer.encode(text))
    tokens = list(range(tokenizer.vocab_size))
    assert again.decode(tokens) == tokenizer.decode(tokens)
    assert again.to_json() == tokenizer.to_json()


@each
def test_encode_many_matches_encode(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    texts = ["the cat", "", "sat the"]
    for text, tokens in zip(texts, tokenizer.encode_many(texts), strict=True):
        np.testing.assert_array_equal(tokens, tokenizer.encode(text))
    assert tokenizer.encode_many([]) == []


@each
@pytest.mark.parametrize("wrong", [-1, 10**6, 1.5, "a", True])
def test_invalid_token_ids(name: str, wrong: Any) -> None:
    tokenizer = TOKENIZERS[name]
    with pytest.raises(TokenError, match=rf"is not a token id: expected 0 to {tokenizer.vocab_size - 1}"):
        tokenizer.stream().push(wrong)
    with pytest.raises((TokenError, DtypeError)):
        tokenizer.decode([wrong])


@each
def test_two_dimensional_tokens_are_refused(name: str) -> None:
    with pytest.raises(DtypeError, match=r"a 1-D integer sequence, but got int64 of shape \(1, 2\)\nfix: "):
        TOKENIZERS[name].decode(np.array([[0, 1]]))


@each
def test_lone_surrogates_are_refused(name: str) -> None:
    with pytest.raises(TokenError, match=r"lone surrogate U\+D83D at position 2 of the text: 'a \\ud83d b'\nfix: "):
        TOKENIZERS[name].encode("a \ud83d b")


@each
def test_bytes_are_refused(name: str) -> None:
    with pytest.raises(ArgumentTypeError, match="text must be a str, but got bytes\nfix: "):
        TOKENIZERS[name].encode(b"abc")  # type: ignore[arg-type]


def test_the_smallest_dtype_is_used() -> None:
    sizes = {name: (tokenizer.vocab_size, tokenizer.dtype.name) for name, tokenizer in TOKENIZERS.items()}
    assert sizes["bytes"] == (257, "uint16")
    assert sizes["bpe"] == (300, "uint16")
    assert sizes["characters"][1] == "uint8"
    assert CharacterTokenizer("".join(map(chr, range(255)))).dtype == np.uint8
    assert CharacterTokenizer("".join(map(chr, range(256)))).dtype == np.uint16
    large = CharacterTokenizer("".join(chr(i) for i in range(70_000) if not 0xD800 <= i < 0xE000))
    assert large.dtype == np.uint32


@each_that_knows_all
@pytest.mark.parametrize("word", ["<|end|>", "<|endoftext|>"])
def test_special_tokens_are_parsed_with_allow_special(name: str, word: str) -> None:
    tokenizer = TOKENIZERS[name]
    tokens = tokenizer.encode(f"the{word}{word}cat", allow_special=True)
    assert tokens.dtype == tokenizer.dtype
    assert tokens.tolist() == [
        *tokenizer.encode("the"),
        tokenizer.eos_token_id,
        tokenizer.eos_token_id,
        *tokenizer.encode("cat"),
    ]
    assert tokenizer.decode(tokens).replace(" ", "") == "thecat"  # some add a prefix space
    assert tokenizer.encode(word, allow_special=True).tolist() == [tokenizer.eos_token_id]


@each
@seeded
@given(texts=st.lists(st.sampled_from(["", "the cat", "the", "cat the"]), max_size=3))
def test_allow_special_does_not_change_other_text(name: str, texts: list[str]) -> None:
    tokenizer = TOKENIZERS[name]
    allowed = tokenizer.encode_many(texts, allow_special=True)
    assert [one.tolist() for one in allowed] == [tokenizer.encode(text).tolist() for text in texts]


def test_special_tokens_need_no_characters_in_the_alphabet() -> None:
    tokenizer = CharacterTokenizer("abc")
    assert tokenizer.encode("ab<|endoftext|>c", allow_special=True).tolist() == [0, 1, tokenizer.eos_token_id, 2]
    with pytest.raises(TokenError, match="'<'"):
        tokenizer.encode("ab<|endoftext|>c")


def test_special_tokens_of_a_vocabulary_have_their_own_names() -> None:
    special = TOKENIZERS["llama"].special_tokens
    assert special["</s>"] == TOKENIZERS["llama"].eos_token_id == special["<|end|>"]
    assert TOKENIZERS["llama"].encode("<s>cat", allow_special=True)[0] == special["<s>"]


@each_that_knows_all
def test_an_incomplete_character_at_a_cut_is_dropped(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    tokens = tokenizer.encode("the \U0001d11e").tolist()
    for count in range(1, len(tokens)):
        for cut in (True, False):
            stream = tokenizer.stream()
            text = "".join([*map(stream.push, tokens[:count]), stream.finish(cut=cut)])
            half = not "the \U0001d11e".startswith(tokenizer.decode(tokens[:count]))
            assert text.endswith("\N{REPLACEMENT CHARACTER}") == (half and not cut)
