"""Generate stories: random numbers -> a story and its probability."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

from normscope.checks import SEED_LIMIT, check_seed
from normscope.data.stories.grammar import BranchNode, DrawNode, EndNode, Grammar, GrammarNode, TextNode
from normscope.data.stories.vocabulary import Word


@dataclass(frozen=True)
class Story:
    """A story and -ln of its probability."""

    text: str
    nats: float


def generate_story(grammar: Grammar, uniform: Callable[[], float]) -> Story:
    """Generate one story. `uniform` returns a random number from [0, 1) for each choice."""
    texts: list[str] = []
    slots: dict[str, Word] = {}
    nats = 0.0
    node: GrammarNode = grammar.start
    while not isinstance(node, EndNode):
        if isinstance(node, BranchNode):
            index, branch = node.branches.sample(uniform())
            nats += node.branches.nats[index]
            node = branch
            continue
        if isinstance(node, TextNode):
            texts.append(node.text)
        else:
            if isinstance(node, DrawNode):
                distribution = node.distribution(slots)
                index, slots[node.slot] = distribution.sample(uniform())
                nats += distribution.nats[index]
            texts.append(slots[node.slot].form(node.form))
        node = node.next
    return Story("".join(texts), nats)


def generate_stories(grammar: Grammar, seed: int, start: int = 0) -> Iterator[Story]:
    """Generate stories from index `start`. Story i depends only on the seed and on i."""
    check_seed(seed=seed, start=start)
    # Python guarantees the same sequence for an int seed across versions.
    randoms = (Random(int(seed) * SEED_LIMIT + index) for index in range(int(start), SEED_LIMIT))
    return (generate_story(grammar, random.random) for random in randoms)
