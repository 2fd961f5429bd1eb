"""A row and its window: where it begins follows from the row's own length."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from normscope.generate.sequence import Row


def row_of(count: int, context: int = 6) -> Row:
    return Row(list(range(count)), prompt=0, sample=0, context=context, vocabulary=100)


@given(given_tokens=st.integers(1, 20), context=st.integers(1, 9), added=st.integers(0, 30))
def test_the_window_is_the_newest_tokens_and_fits(given_tokens: int, context: int, added: int) -> None:
    row = row_of(given_tokens, context)
    for i in range(added):
        before = row.begin
        row.add(50 + i)
        assert row.begin in (before, len(row.tokens) - max(1, context // 2))
        assert row.begin == before or len(row.tokens) - before > context  # it does not move before it has to
    assert 1 <= len(row.window) <= context
    assert row.tokens[-len(row.window) :] == row.window
    assert row.written == [50 + i for i in range(added)]
    assert row.count == added
    assert len(row.notices) <= 2


def test_what_is_in_the_text_is_known_prompt_included() -> None:
    row = row_of(3)
    row.add(7)
    row.add(1)
    assert row.seen.tolist() == [0, 1, 2, 7]


def test_tokens_beyond_what_can_be_chosen_may_be_in_a_prompt() -> None:
    row = Row([3, 99], prompt=0, sample=0, context=6, vocabulary=10)
    assert row.seen.tolist() == [3]


@pytest.mark.parametrize(("count", "added", "words"), [
    (6, 0, []),
    (7, 0, ["the prompt has 7 tokens, but the model sees 6"]),
    (6, 1, ["goes on from the newest 3"]),
    (7, 9, ["the prompt has 7 tokens", "longer than the model's context of 6"]),
])  # fmt: skip
def test_notices_come_once(count: int, added: int, words: list[str]) -> None:
    row = row_of(count)
    for i in range(added):
        row.add(i)
    assert len(row.notices) == len(words)
    assert all(word in notice for word, notice in zip(words, row.notices, strict=True))
