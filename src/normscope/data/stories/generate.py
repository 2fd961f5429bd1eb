"""Telling: from random numbers to a story, and what its choices cost."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

from normscope.checks import SEED_LIMIT, check_seed
from normscope.data.stories.grammar import BranchNode, DrawNode, EndNode, Grammar, GrammarNode, TextNode
from normscope.data.stories.vocabulary import Word


@dataclass(frozen=True)
class Story:
    """A text, and -ln of the probability that just this one is told."""

    text: str
    nats: float


def generate_story(grammar: Grammar, number: Callable[[], float]) -> Story:
    """Walk the grammar once, asking for a number from [0, 1) at every choice."""
    words: list[str] = []
    memory: dict[str, Word] = {}
    nats = 0.0
    step: GrammarNode = grammar.start
    while not isinstance(step, EndNode):
        if isinstance(step, TextNode):
            words.append(step.text)
            step = step.next
        elif isinstance(step, BranchNode):
            place, way = step.ways.pick(number())
            nats += step.ways.nats[place]
            step = way
        elif isinstance(step, DrawNode):
            odds = step.odds(None if step.other is None else memory[step.other])
            place, word = odds.pick(number())
            nats += odds.nats[place]
            memory[step.slot] = word
            words.append(word.form(step.form))
            step = step.next
        else:
            words.append(memory[step.slot].form(step.form))
            step = step.next
    return Story("".join(words), nats)


def generate_stories(grammar: Grammar, seed: int, start: int = 0) -> Iterator[Story]:
    """Stories one after the other. Number i depends on the seed and on i alone, so that any can be the first."""
    check_seed(seed=seed, start=start)
    return _tell_from(grammar, int(seed), int(start))


def _tell_from(grammar: Grammar, seed: int, index: int) -> Iterator[Story]:
    random = Random()
    for number in range(index, SEED_LIMIT):
        random.seed(seed * SEED_LIMIT + number)  # Python promises the same numbers for a whole number, in every version
        yield generate_story(grammar, random.random)
