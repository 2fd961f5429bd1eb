"""The three traversals of a grammar, checked against a list of all its texts."""

import math
from itertools import islice

import pytest

from normscope.data.stories.entropy import compute_entropy
from normscope.data.stories.generate import generate_stories
from normscope.data.stories.grammar import Grammar
from normscope.data.stories.parse import NotAStoryError, derivations, nats
from normscope.data.stories.vocabulary import Word
from normscope.errors import ConfigError, NormscopeError
from tests.data.stories.ambiguity import ambiguities
from tests.data.stories.toy import TOY, every_text
from tests.support import every_refusal

TEXTS = every_text()


def test_probabilities_sum_to_one() -> None:
    assert len(TEXTS) == 36
    assert math.isclose(math.fsum(TEXTS.values()), 1.0, rel_tol=1e-12)


@pytest.mark.parametrize("text", TEXTS)
def test_parse_gives_the_probability_of_each_text(text: str) -> None:
    assert math.isclose(nats(TOY, text), -math.log(TEXTS[text]), rel_tol=1e-12)
    assert len(derivations(TOY, text)) == 1


def test_generation_frequencies_match_the_probabilities() -> None:
    sample = list(islice(generate_stories(TOY, seed=3), 6000))
    assert {story.text for story in sample} == TEXTS.keys()
    for story in sample[:200]:
        assert math.isclose(story.nats, -math.log(TEXTS[story.text]), rel_tol=1e-12)
    for text, p in TEXTS.items():
        seen = sum(story.text == text for story in sample)
        assert abs(seen - 6000 * p) < 4.5 * math.sqrt(6000 * p * (1 - p)), text


def test_entropy_is_the_mean_over_all_texts() -> None:
    floor = compute_entropy(TOY)
    entropy = -math.fsum(p * math.log2(p) for p in TEXTS.values())
    length = math.fsum(p * len(text) for text, p in TEXTS.items())
    assert math.isclose(floor.bits_per_story, entropy, rel_tol=1e-12)
    assert math.isclose(floor.bytes_per_story, length, rel_tol=1e-12)
    assert math.isclose(floor.bits_per_byte, entropy / length, rel_tol=1e-12)


def test_length_is_counted_in_bytes() -> None:
    assert compute_entropy(Grammar({"start": ["caf\u00e9"]}, {}, "start")).bytes_per_story == 5


def test_ambiguous_text_has_summed_probability() -> None:
    twice = Grammar({"start": ["a[b|]<rest>", "c"], "rest": ["c", "bc"]}, {}, "start")
    first, second = 4 / 7, 3 / 7
    assert len(derivations(twice, "abc")) == 2
    assert math.isclose(nats(twice, "abc"), -math.log(first * (first * first + second * second)), rel_tol=1e-12)


def test_error_message_for_text_that_is_not_a_story() -> None:
    with pytest.raises(NotAStoryError) as caught:
        nats(TOY, "A cat met the owl.")
    assert caught.value.position == 10
    assert (
        str(caught.value)
        == """\
the grammar cannot generate this text, from character 10 on
    after 'A cat met '
    got 'the owl.'
    expected 'dog' or 'owl'
fix: pass the whole text of one story from stories()"""
    )


AMBIGUOUS = {
    "the same option twice": ["[a|a]"],
    "nothing in two ways": ["[|][|]."],
    "the same border in two places": ["[a|ab][bc|c]."],
    "the same at the end": ["ab", "a[b|c]"],
    "two words for one text": ["{x=word}{y=word}"],
    "after a long detour": ["{x=word} [sat|sat and {x} sat][| and {x} sat]"],
}


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_ambiguities_are_found(name: str) -> None:
    words = [Word("a"), Word("ab"), Word("bc"), Word("c")]
    assert ambiguities(Grammar({"start": AMBIGUOUS[name]}, {"word": words}, "start"))


def test_unambiguous_grammars_have_no_ambiguities() -> None:
    assert ambiguities(TOY) == []
    assert ambiguities(Grammar({"start": ["[a|ab][c|d]", "[b|]e"]}, {}, "start")) == []


def grammar(*texts: str, **rules: list[str]) -> Grammar:
    return Grammar(
        {"start": list(texts), **rules}, {"pet": [Word("cat", foods=["fish"]), Word("owl", foods=["nuts"])]}, "start"
    )


@every_refusal(
    ("unknown rule", ConfigError, "there is no rule <stat>\nfix: use one of start", lambda: grammar("<stat>")),
    ("empty rule", ConfigError, "there is no rule <none>", lambda: grammar("<none>", none=[])),
    ("unknown table", ConfigError, "there is no table 'pets'\nfix: use one of pet", lambda: grammar("{x=pets}")),
    ("endless", ConfigError, "the rule <more> is recursive", lambda: grammar("<more>", more=["", "a <more>"])),
    (
        "looks at two",
        ConfigError,
        "depends on two slots, x and y",
        lambda: grammar("{x=pet} {y=pet} {z=x.foods not y}"),
    ),
    (
        "never drawn",
        ConfigError,
        "{x} is used before it is filled\nfix: draw x",
        lambda: compute_entropy(grammar("{x}")),
    ),
    (
        "drawn on one way only",
        ConfigError,
        "{x} is used before it is filled",
        lambda: compute_entropy(grammar("[{x=pet}|nobody] and {x}")),
    ),
    (
        "other never drawn",
        ConfigError,
        "{y} is used before it is filled",
        lambda: compute_entropy(grammar("{x=pet not y}")),
    ),
    (
        "unknown form",
        ConfigError,
        "the word 'cat' has no form 'name'",
        lambda: compute_entropy(grammar("{x=pet} {x.name}")),
    ),
    (
        "unknown list",
        ConfigError,
        "has no list 'toys'\nfix: use one of foods",
        lambda: compute_entropy(grammar("{x=pet}{y=x.toys}")),
    ),
)
def test_invalid_grammars(error: type[NormscopeError], words: str, mistake: object) -> None:
    assert callable(mistake)
    with pytest.raises(error) as caught:
        mistake()
    assert words in str(caught.value)
