"""The built-in corpus: small stories without end, whose entropy is known.

    vocabulary, words   what a story can be about: people, animals, places, things, each with its forms
    notation, plots     how stories go, in a notation that reads like the sentences themselves
    grammar             both of these as steps, which are then walked in three ways:
    telling             random numbers -> a story
    reading             a story -> its probability
    expectation         the mean cost and length of all stories: the floor that no model's loss can go below

>>> from itertools import islice
>>> first, second = islice(stories(seed=0), 2)
>>> next(stories(seed=0, start=1)) == second        # any story by its number
True
>>> abs(nats(first.text) - first.nats) < 1e-9       # its probability from the text alone
True
"""

from collections.abc import Iterator
from functools import cache

from normscope.data.stories import entropy as expectation
from normscope.data.stories import generate as telling
from normscope.data.stories import parse as reading
from normscope.data.stories.entropy import EntropyFloor
from normscope.data.stories.generate import Story
from normscope.data.stories.grammar import Grammar
from normscope.data.stories.parse import NotAStoryError
from normscope.data.stories.plots import RULES
from normscope.data.stories.word_lists import TABLES

__all__ = [
    "EntropyFloor",
    "NotAStoryError",
    "Story",
    "derivations",
    "entropy_floor",
    "nats",
    "stories",
    "story_grammar",
]


@cache
def story_grammar() -> Grammar:
    """The grammar of the stories, made when it is first needed."""
    return Grammar(RULES, TABLES, "story")


def stories(seed: int, start: int = 0) -> Iterator[Story]:
    """Stories without end, from number `start` on; a story depends on the seed and on its number alone."""
    return telling.generate_stories(story_grammar(), seed, start)


def nats(text: str) -> float:
    """-ln of the probability that this story is told, from its text alone.

    >>> nats("Once upon a time there was a spreadsheet.")
    Traceback (most recent call last):
    normscope.data.stories.parse.NotAStoryError: this is no story that the grammar tells, from character ...
    """
    return reading.nats(story_grammar(), text)


def derivations(text: str) -> int:
    """In how many ways the grammar makes this text: one, or the floor would be too high."""
    return len(reading.derivations(story_grammar(), text))


@cache
def entropy_floor() -> EntropyFloor:
    """The entropy of the stories and their mean length, exactly.

    >>> round(entropy_floor().bits_per_byte, 2), round(entropy_floor().bytes_per_story)
    (0.22, 588)
    """
    return expectation.compute_entropy(story_grammar())
