"""The three walks over a grammar, against a list of all its texts."""

import math
from itertools import islice

import pytest

from normscope.data.stories.entropy import compute_entropy
from normscope.data.stories.generate import generate_stories
from normscope.data.stories.grammar import Grammar
from normscope.data.stories.parse import NotAStoryError, derivations, nats
from normscope.data.stories.vocabulary import Word
from normscope.errors import ConfigError, NormscopeError
from tests.data.stories.ambiguity import meetings
from tests.data.stories.toy import TOY, every_text
from tests.support import every_refusal

TEXTS = every_text()


def test_the_list_is_complete() -> None:
    assert len(TEXTS) == 36
    assert math.isclose(math.fsum(TEXTS.values()), 1.0, rel_tol=1e-12)


@pytest.mark.parametrize("text", TEXTS)
def test_reading_gives_the_probability_of_each_text(text: str) -> None:
    assert math.isclose(nats(TOY, text), -math.log(TEXTS[text]), rel_tol=1e-12)
    assert len(derivations(TOY, text)) == 1


def test_telling_gives_each_text_as_often_as_it_should() -> None:
    told = list(islice(generate_stories(TOY, seed=3), 6000))
    assert {story.text for story in told} == TEXTS.keys()
    for story in told[:200]:
        assert math.isclose(story.nats, -math.log(TEXTS[story.text]), rel_tol=1e-12)
    for text, p in TEXTS.items():
        seen = sum(story.text == text for story in told)
        assert abs(seen - 6000 * p) < 4.5 * math.sqrt(6000 * p * (1 - p)), text


def test_the_expectation_is_the_mean_over_all_texts() -> None:
    floor = compute_entropy(TOY)
    entropy = -math.fsum(p * math.log2(p) for p in TEXTS.values())
    length = math.fsum(p * len(text) for text, p in TEXTS.items())
    assert math.isclose(floor.bits_per_story, entropy, rel_tol=1e-12)
    assert math.isclose(floor.bytes_per_story, length, rel_tol=1e-12)
    assert math.isclose(floor.bits_per_byte, entropy / length, rel_tol=1e-12)


def test_length_is_counted_in_bytes() -> None:
    assert compute_entropy(Grammar({"start": ["caf\u00e9"]}, {}, "start")).bytes_per_story == 5


def test_a_text_that_can_be_made_in_two_ways_has_the_sum_of_both() -> None:
    twice = Grammar({"start": ["a[b|]<rest>", "c"], "rest": ["c", "bc"]}, {}, "start")
    first, second = 4 / 7, 3 / 7
    assert len(derivations(twice, "abc")) == 2
    assert math.isclose(nats(twice, "abc"), -math.log(first * (first * first + second * second)), rel_tol=1e-12)


def test_the_message_tells_where_what_and_what_to_do() -> None:
    with pytest.raises(NotAStoryError) as caught:
        nats(TOY, "A cat met the owl.")
    assert caught.value.place == 10
    assert (
        str(caught.value)
        == """\
this is no story that the grammar tells, from character 10 on
    after 'A cat met '
    got 'the owl.'
    wanted 'dog' or 'owl'
fix: give the whole text of one story, as stories() made it"""
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
def test_the_proof_sees_two_ways(name: str) -> None:
    words = [Word("a"), Word("ab"), Word("bc"), Word("c")]
    assert meetings(Grammar({"start": AMBIGUOUS[name]}, {"word": words}, "start"))


def test_the_proof_passes_what_has_one_way() -> None:
    assert meetings(TOY) == []
    assert meetings(Grammar({"start": ["[a|ab][c|d]", "[b|]e"]}, {}, "start")) == []


def grammar(*texts: str, **rules: list[str]) -> Grammar:
    return Grammar(
        {"start": list(texts), **rules}, {"pet": [Word("cat", foods=["fish"]), Word("owl", foods=["nuts"])]}, "start"
    )


@every_refusal(
    ("unknown rule", ConfigError, "there is no rule <stat>\nfix: use one of start", lambda: grammar("<stat>")),
    ("empty rule", ConfigError, "there is no rule <none>", lambda: grammar("<none>", none=[])),
    ("unknown table", ConfigError, "there is no table 'pets'\nfix: use one of pet", lambda: grammar("{x=pets}")),
    ("endless", ConfigError, "the rule <more> comes back to itself", lambda: grammar("<more>", more=["", "a <more>"])),
    ("looks at two", ConfigError, "looks at x and at y", lambda: grammar("{x=pet} {y=pet} {z=x.foods not y}")),
    ("never drawn", ConfigError, "without a x\nfix: draw it", lambda: compute_entropy(grammar("{x}"))),
    ("drawn on one way only", ConfigError, "without a x", lambda: compute_entropy(grammar("[{x=pet}|nobody] and {x}"))),
    ("other never drawn", ConfigError, "without a y", lambda: compute_entropy(grammar("{x=pet not y}"))),
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
def test_grammars_that_cannot_be(error: type[NormscopeError], words: str, mistake: object) -> None:
    assert callable(mistake)
    with pytest.raises(error) as caught:
        mistake()
    assert words in str(caught.value)
