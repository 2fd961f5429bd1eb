"""A sequence and its window, whose start depends only on the length of the sequence."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from normscope.generate.sequence import TokenSequence


def sequence_of(count: int, context: int = 6) -> TokenSequence:
    return TokenSequence(list(range(count)), prompt=0, sample=0, context=context, vocabulary=100)


@given(given_tokens=st.integers(1, 20), context=st.integers(1, 9), added=st.integers(0, 30))
def test_the_window_is_the_last_tokens_and_fits_the_context(given_tokens: int, context: int, added: int) -> None:
    sequence = sequence_of(given_tokens, context)
    for i in range(added):
        before = sequence.window_start
        sequence.append(50 + i)
        assert sequence.window_start in (before, len(sequence.tokens) - max(1, context // 2))
        assert sequence.window_start == before or len(sequence.tokens) - before > context
    assert 1 <= len(sequence.window) <= context
    assert sequence.tokens[-len(sequence.window) :] == sequence.window
    assert sequence.generated_tokens == [50 + i for i in range(added)]
    assert sequence.num_generated == added
    assert len(sequence.notices) <= 2


def test_seen_tokens_include_the_prompt() -> None:
    sequence = sequence_of(3)
    sequence.append(7)
    sequence.append(1)
    assert sequence.seen.tolist() == [0, 1, 2, 7]


def test_a_prompt_may_have_tokens_beyond_the_vocabulary() -> None:
    sequence = TokenSequence([3, 99], prompt=0, sample=0, context=6, vocabulary=10)
    assert sequence.seen.tolist() == [3]


@pytest.mark.parametrize(("count", "added", "words"), [
    (6, 0, []),
    (7, 0, ["prompt truncated to its last 6 of 7 tokens"]),
    (6, 1, ["continues from the last 3 tokens"]),
    (7, 9, ["of 7 tokens", "exceeds the context of 6 tokens"]),
])  # fmt: skip
def test_notices_are_given_once(count: int, added: int, words: list[str]) -> None:
    sequence = sequence_of(count)
    for i in range(added):
        sequence.append(i)
    assert len(sequence.notices) == len(words)
    assert all(word in notice for word, notice in zip(words, sequence.notices, strict=True))
