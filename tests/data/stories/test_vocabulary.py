"""Odds, words, tables, and the notation."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normscope.data.stories.categorical import Categorical
from normscope.data.stories.template import (
    Alternatives,
    PlainText,
    RuleReference,
    SlotDraw,
    SlotReference,
    parse_template,
)
from normscope.data.stories.vocabulary import Word, WordTable
from normscope.errors import ConfigError

seeded = settings(derandomize=True, deadline=None)


@seeded
@given(st.integers(1, 40), st.data())
def test_odds_are_probabilities(count: int, data: st.DataObject) -> None:
    odds = Categorical(range(count))
    assert math.isclose(math.fsum(odds.probabilities), 1.0, rel_tol=1e-12)
    assert list(odds.probabilities) == sorted(odds.probabilities, reverse=True)
    assert math.isclose(odds.probabilities[0], odds.probabilities[-1] * (count + 2) / 3, rel_tol=1e-12)
    out = data.draw(st.integers(0, count - 1))
    if count > 1:
        rest = odds.without(out)
        assert out not in rest.options
        assert math.isclose(math.fsum(rest.probabilities), 1.0, rel_tol=1e-12)


@seeded
@given(st.integers(1, 40), st.floats(0, 1, exclude_max=True))
def test_a_number_picks_the_option_whose_stretch_it_lies_in(count: int, number: float) -> None:
    odds = Categorical(range(count))
    place, option = odds.pick(number)
    assert place == option
    assert math.fsum(odds.probabilities[:place]) - 1e-12 <= number <= math.fsum(odds.probabilities[: place + 1]) + 1e-12


def test_a_word_has_its_article_and_its_capitals() -> None:
    word = Word("old mill", inside="in the mill")
    assert [word.form(name) for name in ("", "a", "A", "cap", "inside", "Inside")] == [
        *("old mill", "an old mill", "An old mill", "Old mill", "in the mill", "In the mill"),
    ]


def test_another_word_keeps_its_share() -> None:
    cat, owl, dog = words = [Word("cat"), Word("owl"), Word("dog")]
    odds = WordTable(words).odds(unlike=owl)
    assert odds.options == (cat, dog)
    assert math.isclose(odds.probabilities[0] / odds.probabilities[1], 5 / 3, rel_tol=1e-12)
    assert WordTable(words).odds(unlike=Word("owl")).options == (
        cat,
        owl,
        dog,
    )  # a word of another table takes nothing away


def test_two_words_that_read_the_same_are_refused() -> None:
    with pytest.raises(ConfigError, match="several words of a table read 'cat'"):
        WordTable([Word("cat"), Word("cat")])
    table = WordTable([Word("Lily", he="she"), Word("Mia", he="she")])
    with pytest.raises(ConfigError, match="several words of a table read 'she'\nfix: draw them by a form that differs"):
        table.check_distinct("he")


def test_the_notation() -> None:
    assert parse_template("A{x}{x.he}{x=t}{y=x.f as a}{z=t as b not x}<r 1>[|b[c]]") == (
        PlainText("A"),
        SlotReference("x", ""),
        SlotReference("x", "he"),
        SlotDraw("x", "t", "", None),
        SlotDraw("y", "x.f", "a", None),
        SlotDraw("z", "t", "b", "x"),
        RuleReference("r 1"),
        Alternatives(((), (PlainText("b"), Alternatives(((PlainText("c"),),))))),
    )
    assert parse_template("") == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a | b", "'| b' stands outside of any [...], at character 2"),
        ("a]", "']' stands outside of any [...], at character 1"),
        ("[a|b", "the end comes before every '[' is closed"),
        ("a {b", "'{b' cannot be read, at character 2"),
        ("{b=}", "'{b=}' cannot be read, at character 0"),
        ("<a", "'<a' cannot be read, at character 0"),
        ("a}", "'}' cannot be read, at character 1"),
    ],
)
def test_faults_of_the_notation_are_pointed_at(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_template(text)
    assert words in str(caught.value)
    assert "\nfix: " in str(caught.value)
