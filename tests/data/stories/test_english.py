"""Properties of every story: plain text, correct grammar, consistent references."""

import re
from collections import Counter
from itertools import islice

import pytest

from normscope.data.stories import stories
from normscope.data.stories.load import load_rules, load_tables

RULES, TABLES = load_rules(), load_tables()
TEXTS = [story.text for story in islice(stories(seed=2), 3000)]
HEROES = {person.text: person for person in TABLES["person"]}


def any_of(words: list[str]) -> str:
    return f"(?:{'|'.join(words)})"


def hero_of(text: str) -> str:
    """The first name of the story."""
    name = re.search(rf"\b{any_of(list(HEROES))}\b", text)
    assert name is not None
    return name[0]


def offenders(pattern: str) -> list[str]:
    """Excerpts of the stories around each match of a forbidden pattern."""
    return [
        text[max(0, found.start() - 20) : found.end() + 20] for text in TEXTS for found in re.finditer(pattern, text)
    ]


@pytest.mark.parametrize(
    "pattern",
    [
        pytest.param(r"[^\n -~]", id="not plain ASCII"),
        pytest.param(r"  |\n\n| \n|\n ", id="doubled spaces"),
        pytest.param(r"^\s|\s$", id="spaces at the ends"),
        pytest.param(r" [.,!?]", id="space before punctuation"),
        pytest.param(r"[.,!?][.,;:]", id="doubled punctuation"),
        pytest.param(r"[{}<>|\[\]=]", id="left over notation"),
        pytest.param(r"\b[Aa] [aeiou]", id="a before a vowel"),
        pytest.param(r"\b[Aa]n (?!hour\b)[^aeiou]", id="an before a consonant"),
        pytest.param(r"\b([Tt]he|[Aa]n?|[Ii]n|[Tt]o|and|was|[Tt]hen|[Ss]o|it) \1\b", id="the same word twice"),
        pytest.param(r"[.!?] [a-z]", id="lowercase after a period"),
        pytest.param(r"(^|\n)[^A-Z\"]", id="lowercase at the start"),
        pytest.param(r"[^.!?\"](\n|$)", id="no punctuation at the end"),
        pytest.param(r", (The|Something|Then|So|Now|It|They|Let|Who|At|In|He|She)\b", id="a capital after a comma"),
    ],
)
def test_forbidden_pattern(pattern: str) -> None:
    assert offenders(pattern)[:5] == []


def test_quotes_are_balanced_and_punctuated() -> None:
    for text in TEXTS:
        for paragraph in text.split("\n"):
            said = paragraph.split('"')[1::2]
            assert paragraph.count('"') % 2 == 0
            assert all(re.fullmatch(r"[A-Z].*[,.!?]", words) for words in said), paragraph


def test_pronouns_match_the_hero() -> None:
    for text in TEXTS:
        wanted = HEROES[hero_of(text)].form("he")
        assert {word.lower() for word in re.findall(r"\b([Hh]e|[Ss]he)\b", text)} <= {wanted}, text


def test_girl_or_boy_matches_the_hero() -> None:
    for text in TEXTS:
        assert HEROES[hero_of(text)].form("child") in re.findall(r"\b(girl|boy)\b", text.split("\n")[0])


def test_object_stays_the_same() -> None:
    pair = rf"\b{any_of([word.text for word in TABLES['look']])} {any_of([word.text for word in TABLES['thing']])}\b"
    pairs = [re.findall(pair, text) for text in TEXTS]
    assert all(len(set(found)) <= 1 for found in pairs)
    assert sum(len(found) >= 3 for found in pairs) > 500


@pytest.mark.parametrize(
    "pattern",
    [
        pytest.param(r"\w+ ribbon", id="ribbon"),
        pytest.param(r"\b[A-Z][a-z]+-[a-z]+-[a-z]+", id="magic word"),
        pytest.param(rf"\b{any_of([word.text for word in TABLES['animal']])}\b(?! tree)", id="animal"),
    ],
)
def test_repeated_mentions_agree(pattern: str) -> None:
    found = [re.findall(pattern, text) for text in TEXTS]
    assert all(len(set(words)) <= 1 for words in found)
    assert sum(len(words) >= 2 for words in found) > 150


def test_number_of_people() -> None:
    for text in TEXTS:
        names = set(re.findall(rf"\b{any_of(list(HEROES))}\b", text))
        assert len(names) == (2 if re.search(r"ribbon|\brace\b", text) else 1), text


def test_stories_are_short_and_varied() -> None:
    lengths = sorted(map(len, TEXTS))
    assert lengths[30] > 350
    assert lengths[-30] < 850
    words = Counter(re.findall(r"[a-z]+", "\n".join(TEXTS)))
    assert 500 < len(words) < 1500
    assert len(words) - list(words.values()).count(1) > 500
    starts = Counter(text.split("\n")[1][:12] for text in TEXTS)
    assert starts.most_common(1)[0][1] < len(TEXTS) / 10


def test_every_rule_and_table_is_used() -> None:
    notation = "".join(text for texts in RULES.values() for text in texts)
    assert {name for name in RULES if f"<{name}>" not in notation} == {"story"}
    assert {name for name in TABLES if not re.search(rf"={name}\b", notation)} == set()
