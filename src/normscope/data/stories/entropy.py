"""The exact entropy and mean length of the stories of a grammar.

Expectation is linear, so it suffices to know, for each node, the probability of reaching it and the distribution of the
word in each slot. Only draws depend on the slots, and a draw depends on at most one slot, so the slots can be followed
separately: the result is exact without their joint distribution.
"""

import math
from collections import defaultdict
from dataclasses import dataclass, field

from normscope.data.stories.grammar import BranchNode, DrawNode, EndNode, Grammar, GrammarNode, TextNode
from normscope.data.stories.vocabulary import Word
from normscope.errors import ConfigError

WordMass = dict[Word, float]
"""For each word that a slot can hold: the probability of reaching a node with it."""


@dataclass(frozen=True)
class EntropyFloor:
    """Entropy of the stories: the lowest mean loss that any model can reach.

    `bits_per_byte` is the entropy rate of an endless sequence of stories whose boundaries are known.
    """

    bits_per_story: float
    bytes_per_story: float

    @property
    def bits_per_byte(self) -> float:
        return self.bits_per_story / self.bytes_per_story


@dataclass
class _NodeMass:
    """The probability of reaching a node, in total and by the word in each slot."""

    total: float = 0.0
    slots: dict[str, WordMass] = field(default_factory=dict)

    def add(self, other: "_NodeMass", probability: float) -> None:
        self.total += probability * other.total
        for slot, masses in other.slots.items():
            here = self.slots.setdefault(slot, {})
            for word, mass in masses.items():
                here[word] = here.get(word, 0.0) + probability * mass

    def words(self, slot: str) -> WordMass:
        """Return the mass of each word in a slot, which must be filled on every path to the node."""
        masses = self.slots.get(slot, {})
        if not math.isclose(math.fsum(masses.values()), self.total, rel_tol=1e-9):
            raise ConfigError(f"the slot {{{slot}}} is used before it is filled\nfix: draw {slot} on every path there")
        return masses


def compute_entropy(grammar: Grammar) -> EntropyFloor:
    """Propagate probabilities through the graph, and sum costs and lengths over its nodes."""
    reached: defaultdict[GrammarNode, _NodeMass] = defaultdict(_NodeMass)
    reached[grammar.start].total = 1.0
    nats, length = [], []
    for node in reversed(grammar.nodes):  # topological order
        here = reached.pop(node, _NodeMass())
        if isinstance(node, EndNode):
            continue
        if isinstance(node, BranchNode):
            nats.append(here.total * node.branches.entropy)
            for branch, probability in zip(node.branches.options, node.branches.probabilities, strict=True):
                reached[branch].add(here, probability)
            continue
        if isinstance(node, TextNode):
            length.append(here.total * len(node.text.encode()))
        else:
            if isinstance(node, DrawNode):
                cost, here.slots[node.slot] = _draw(node, here)
                nats.append(cost)
            length += [mass * len(word.form(node.form).encode()) for word, mass in here.words(node.slot).items()]
        reached[node.next].add(here, 1.0)
    return EntropyFloor(math.fsum(nats) / math.log(2), math.fsum(length))


def _draw(node: DrawNode, here: _NodeMass) -> tuple[float, WordMass]:
    """Return the mean cost of a draw in nats, and the mass of each word afterwards."""
    cost, drawn = 0.0, defaultdict[Word, float](float)
    others = {None: here.total} if node.other is None else here.words(node.other)
    for other, mass in others.items():
        distribution = node.distribution_given(other)
        cost += mass * distribution.entropy
        for word, probability in zip(distribution.options, distribution.probabilities, strict=True):
            drawn[word] += mass * probability
    return cost, dict(drawn)
