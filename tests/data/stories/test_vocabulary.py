"""Distributions, words, tables, templates and the files they are loaded from."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normscope.data.stories.load import parse_rules
from normscope.data.stories.template import Template, parse_template
from normscope.data.stories.vocabulary import Categorical, Word, WordTable
from normscope.errors import ConfigError

seeded = settings(derandomize=True, deadline=None)


@seeded
@given(st.integers(1, 40), st.data())
def test_default_probabilities(count: int, data: st.DataObject) -> None:
    distribution = Categorical(range(count))
    assert math.isclose(math.fsum(distribution.probabilities), 1.0, rel_tol=1e-12)
    assert list(distribution.probabilities) == sorted(distribution.probabilities, reverse=True)
    assert math.isclose(distribution.probabilities[0], distribution.probabilities[-1] * (count + 2) / 3, rel_tol=1e-12)
    out = data.draw(st.integers(0, count - 1))
    if count > 1:
        rest = distribution.without(out)
        assert out not in rest.options
        assert math.isclose(math.fsum(rest.probabilities), 1.0, rel_tol=1e-12)


@seeded
@given(st.integers(1, 40), st.floats(0, 1, exclude_max=True))
def test_sample_inverts_the_cumulative_distribution(count: int, number: float) -> None:
    distribution = Categorical(range(count))
    index, option = distribution.sample(number)
    assert index == option
    assert (
        math.fsum(distribution.probabilities[:index]) - 1e-12
        <= number
        <= math.fsum(distribution.probabilities[: index + 1]) + 1e-12
    )


def test_word_forms() -> None:
    word = Word("old mill", inside="in the mill")
    assert [word.form(name) for name in ("", "a", "A", "cap", "inside", "Inside")] == [
        *("old mill", "an old mill", "An old mill", "Old mill", "in the mill", "In the mill"),
    ]


def test_excluding_a_word_keeps_the_ratios() -> None:
    cat, owl, dog = words = [Word("cat"), Word("owl"), Word("dog")]
    distribution = WordTable(words).distribution(unlike=owl)
    assert distribution.options == (cat, dog)
    assert math.isclose(distribution.probabilities[0] / distribution.probabilities[1], 5 / 3, rel_tol=1e-12)
    assert WordTable(words).distribution(unlike=Word("owl")).options == (
        cat,
        owl,
        dog,
    )  # a word of another table excludes nothing


def test_duplicate_words_are_rejected() -> None:
    with pytest.raises(ConfigError, match="several words of a table have the text 'cat'"):
        WordTable([Word("cat"), Word("cat")])
    table = WordTable([Word("Lily", he="she"), Word("Mia", he="she")])
    with pytest.raises(
        ConfigError, match="several words of a table have the text 'she'\nfix: draw them by a form that differs"
    ):
        table.check_distinct("he")


def parts(template: Template) -> list[object]:
    """The groups that each token of a template has, with its options as lists."""
    return [
        [parts(option) for option in part]
        if isinstance(part, tuple)
        else {name: text for name, text in part.groupdict().items() if text is not None}
        for part in template
    ]


def test_template_syntax() -> None:
    assert parts(parse_template("A{x}{x.he}{x=t}{y=x.f as a}{z=t as b not x}<r 1>[|b[c]]")) == [
        {"plain": "A"},
        {"slot": "x"},
        {"slot": "x", "slot_form": "he"},
        {"drawn": "x", "source": "t"},
        {"drawn": "y", "source": "x.f", "form": "a"},
        {"drawn": "z", "source": "t", "form": "b", "unlike": "x"},
        {"rule": "r 1"},
        [[], [{"plain": "b"}, [[{"plain": "c"}]]]],
    ]
    assert parse_template("") == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a | b", "'|' outside of [...] at character 2"),
        ("a]", "']' outside of [...] at character 1"),
        ("[a|b", "unclosed '[' at character 4"),
        ("a {b", "unexpected '{b' at character 2"),
        ("{b=}", "unexpected '{b=}' at character 0"),
        ("<a", "unexpected '<a' at character 0"),
        ("a}", "unexpected '}' at character 1"),
    ],
)
def test_template_syntax_errors_name_the_position(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_template(text)
    assert words in str(caught.value)
    assert "\nfix: " in str(caught.value)


def test_duplicate_rule_is_rejected() -> None:
    with pytest.raises(ConfigError, match="the rule <pet> is defined twice\nfix: "):
        parse_rules("<pet> ::= cat\n<pet> ::= dog\n")
