"""Stop strings: the text ends before the first match, however it is split into pieces."""

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from normscope.errors import ArgumentTypeError, ConfigError, NormscopeError
from normscope.generate.config import GenerationConfig
from normscope.generate.stop_strings import StopStringFilter
from tests.support import every_refusal

words = st.text("ab", min_size=1, max_size=4)


def by_definition(text: str, stops: tuple[str, ...]) -> tuple[str, bool]:
    """Letter by letter: as soon as the text ends with a stop string it is cut before the longest of those."""
    for upto in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:upto].endswith(stop)]
        if ending:
            return text[: upto - max(map(len, ending))], True
    return text, False


@settings(max_examples=2 * settings().max_examples)
@given(pieces=st.lists(st.text("abc", max_size=5), max_size=6), stops=st.lists(words, max_size=3).map(tuple))
@example(pieces=["abab"], stops=("bab", "ab"))
@example(pieces=["a", "a", "b"], stops=("aab",))
@example(pieces=["ab", "ca"], stops=("abcd", "bc"))
def test_the_result_does_not_depend_on_the_pieces(pieces: list[str], stops: tuple[str, ...]) -> None:
    text, stopped = by_definition("".join(pieces), stops)
    finder, shown = StopStringFilter(stops), ""
    for piece in pieces:
        shown += finder.push(piece)
        assert text.startswith(shown)  # nothing that would have to be taken back
    shown += finder.finish()
    assert (shown, finder.found) == (text, stopped)


@given(text=st.text("abc", max_size=12), stops=st.lists(words, max_size=3).map(tuple))
def test_only_a_possible_prefix_is_held_back(text: str, stops: tuple[str, ...]) -> None:
    finder = StopStringFilter(stops)
    shown = finder.push(text)
    if not finder.found:
        held = text[len(shown) :]
        assert not held or any(stop.startswith(held) for stop in stops)


def test_without_stop_strings_nothing_is_held_back() -> None:
    finder = StopStringFilter(())
    assert [finder.push(piece) for piece in ("a", "", "bc")] == ["a", "", "bc"]
    assert finder.finish() == ""


@every_refusal(
    ("empty", ConfigError, "a stop string is empty.*\nfix: remove it", lambda: GenerationConfig(stop=("a", ""))),
    ("empty-alone", ConfigError, "a stop string is empty", lambda: GenerationConfig(stop="")),
    ("number", ArgumentTypeError, "a stop string must be a str, but got 3", lambda: GenerationConfig(stop=(3,))),  # type: ignore[arg-type]
)
def test_invalid_arguments(error: type[NormscopeError], words: str, mistake: Any) -> None:
    with pytest.raises(error, match=words):
        mistake()
