"""The character tokenizer: sorted alphabet, and errors that name unknown characters."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normscope.data.tokenizers import Alphabet, CharacterTokenizer
from normscope.errors import ConfigError, TokenError

seeded = settings(derandomize=True, deadline=None)


@seeded
@given(texts=st.lists(st.text()))
def test_alphabet_is_unique_and_sorted(texts: list[str]) -> None:
    alphabet = Alphabet()
    for text in texts:
        alphabet.add(text)
    assert str(alphabet) == "".join(sorted(set("".join(texts))))


@seeded
@given(text=st.text(alphabet="abxyé🐈", min_size=1), alphabet=st.sets(st.sampled_from("abxyé🐈"), min_size=1))
def test_the_first_unknown_character_is_reported(text: str, alphabet: set[str]) -> None:
    tokenizer = CharacterTokenizer("".join(sorted(alphabet)))
    unknown = [i for i, character in enumerate(text) if character not in alphabet]
    if not unknown:
        assert tokenizer.decode(tokenizer.encode(text)) == text
        return
    with pytest.raises(TokenError, match=rf"'{text[unknown[0]]}' .* at position {unknown[0]} of the text"):
        tokenizer.encode(text)


def test_an_unknown_character_is_reported_with_name_and_position() -> None:
    with pytest.raises(TokenError) as caught:
        CharacterTokenizer.of(["the cat "]).encode("the cat\t")
    assert str(caught.value) == (
        r"'\t' (U+0009, unnamed character) is not in the tokenizer's alphabet of 6 characters, at "
        r"position 7 of the text: 'the cat\t'"
        "\nfix: remove it, add text that contains it to the corpus, or use the tokenizer 'bytes' or 'bpe', which "
        "encode every character"
    )
    with pytest.raises(TokenError, match=r"^'🐈' \(U\+1F408, CAT\) .*…'the the the the the 🐈 the the the the th'…"):
        CharacterTokenizer(" eht").encode("the " * 50 + "🐈" + " the" * 50)


@pytest.mark.parametrize("wrong", ["", "ba", "aa", None, ["a", "b"]])
def test_invalid_alphabets(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="an alphabet must be unique characters in Unicode order, but got "):
        CharacterTokenizer(wrong)
