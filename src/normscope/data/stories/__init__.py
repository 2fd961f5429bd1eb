"""The built-in corpus: an endless supply of generated stories whose entropy is known exactly.

    words.txt, plots/   words and sentence templates, as data
    load                read these files
    template            parse one sentence template
    vocabulary          words with their forms, in tables to draw from
    grammar             templates and tables as a graph, which is traversed in three ways:
    generate            random numbers -> a story and its probability
    parse               a story -> its probability
    entropy             mean cost and length over all stories: the lowest loss that any model can reach

>>> from itertools import islice
>>> first, second = islice(stories(seed=0), 2)
>>> next(stories(seed=0, start=1)) == second        # random access by index
True
>>> abs(nats(first.text) - first.nats) < 1e-9       # the probability from the text alone
True
"""

from collections.abc import Iterator
from functools import cache

from normscope.data.stories import parse
from normscope.data.stories.entropy import EntropyFloor, compute_entropy
from normscope.data.stories.generate import Story, generate_stories
from normscope.data.stories.grammar import Grammar
from normscope.data.stories.load import load_rules, load_tables
from normscope.data.stories.parse import NotAStoryError

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
    """Return the grammar of the stories; built on first use."""
    return Grammar(load_rules(), load_tables(), "story")


def stories(seed: int, start: int = 0) -> Iterator[Story]:
    """Generate stories forever, from index `start`. A story depends only on the seed and its index."""
    return generate_stories(story_grammar(), seed, start)


def nats(text: str) -> float:
    """Return -ln of the probability of generating this story.

    >>> nats("Once upon a time there was a spreadsheet.")
    Traceback (most recent call last):
    normscope.data.stories.parse.NotAStoryError: the grammar cannot generate this text, from character ...
    """
    return parse.nats(story_grammar(), text)


def derivations(text: str) -> int:
    """Return the number of derivations of this text: 1, because the grammar is unambiguous."""
    return len(parse.derivations(story_grammar(), text))


@cache
def entropy_floor() -> EntropyFloor:
    """Return the exact entropy and mean length of the stories.

    >>> round(entropy_floor().bits_per_byte, 2), round(entropy_floor().bytes_per_story)
    (0.22, 588)
    """
    return compute_entropy(story_grammar())
