"""Word wrap of text that comes in pieces: no word is cut, no line is too long, and the pieces do not matter."""

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from normscope.render.word_wrap import WordWrap

TEXT = st.text(st.sampled_from("ab \n中。，（）é\u0301🙂\u200d\u3000\t-"), max_size=60)


def wrapped(text: str, width: int, *cuts: int) -> str:
    wrap = WordWrap(width)
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [wrap.feed(text[start:stop]) for start, stop in itertools.pairwise(places)]
    return "".join([*pieces, wrap.flush()])


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("once upon a time", 9, ["once upon", "a time"]),
        ("once upon a time", 16, ["once upon a time"]),
        ("abcdefghij kl", 4, ["abcd", "efgh", "ij", "kl"]),  # longer than a line
        ("a bcdefghij", 4, ["a", "bcde", "fghi", "j"]),
        ("one  two", 5, ["one", "two"]),  # the space at a break is dropped
        ("one \ntwo", 3, ["one", "two"]),  # and one beyond the edge, which would begin a line of its own
        ("    x = 1\n\n  y", 20, ["    x = 1", "", "  y"]),  # indentation stays
        ("\tab cd", 12, ["\tab", "cd"]),
        ("从前有一只猫", 5, ["从前", "有一", "只猫"]),  # two columns each
        ("从前有。一只", 6, ["从前", "有。一", "只"]),  # no line begins with a full stop
        ("从（前）有", 4, ["从", "（前", "）有"]),  # unless nothing else fits
        ("go 回家 now", 7, ["go 回家", "now"]),
        ("e\u0301" * 4, 2, ["e\u0301e\u0301"] * 2),
        ("🇩🇪🇫🇷", 2, ["🇩🇪", "🇫🇷"]),
        ("👨\u200d👩 x", 3, ["👨\u200d👩", "x"]),
        ("a\u00a0b c", 4, ["a\u00a0b", "c"]),
    ],
)
def test_lines(text: str, width: int, lines: list[str]) -> None:
    assert wrapped(text, width).split("\n") == lines


@given(TEXT, st.integers(2, 20), st.lists(st.integers(0, 60), max_size=5))
def test_how_the_text_was_cut_up_does_not_matter(text: str, width: int, cuts: list[int]) -> None:
    assert wrapped(text, width, *cuts) == wrapped(text, width)


@given(TEXT, st.integers(4, 20))
def test_no_line_is_too_long_and_nothing_is_lost(text: str, width: int) -> None:
    lines = wrapped(text.replace("\t", " "), width).split("\n")
    assert max(map(cell_len, lines)) <= width
    assert re.sub(r"\s", "", "".join(lines)) == re.sub(r"\s", "", text)


@given(st.lists(st.text("abc.-", min_size=1, max_size=8)), st.integers(8, 30))
def test_no_word_that_fits_is_cut(words: list[str], width: int) -> None:
    assert wrapped(" ".join(words), width).split() == words
