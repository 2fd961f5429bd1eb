"""What to expect of a grammar: the exact mean cost and length of its stories.

The mean of a sum is the sum of the means, so it is enough to know, for every step, how likely a story comes there and
which words its slots hold then. No choice but a draw looks at the memory, and a draw looks at one slot, so each slot
can be followed by itself: the numbers are exact although no two slots are ever looked at together.
"""

import math
from collections import defaultdict
from dataclasses import dataclass, field

from normscope.data.stories.grammar import BranchNode, DrawNode, EndNode, Grammar, GrammarNode, SlotNode, TextNode
from normscope.data.stories.vocabulary import Word
from normscope.errors import ConfigError

Masses = dict[Word, float]
"""For each word that a slot can hold, how likely a story comes to a step with it."""


@dataclass(frozen=True)
class EntropyFloor:
    """The least that any model can need for the stories, on average: their entropy.

    `bits_per_byte` is the entropy of an endless row of stories, whose borders are known, for each of its bytes.
    """

    bits_per_story: float
    bytes_per_story: float

    @property
    def bits_per_byte(self) -> float:
        return self.bits_per_story / self.bytes_per_story


@dataclass
class _Arrivals:
    """How likely a story comes to a step, and with which words in its slots."""

    mass: float = 0.0
    slots: dict[str, Masses] = field(default_factory=dict)

    def add(self, other: "_Arrivals", share: float) -> None:
        self.mass += share * other.mass
        for slot, masses in other.slots.items():
            here = self.slots.setdefault(slot, {})
            for word, mass in masses.items():
                here[word] = here.get(word, 0.0) + share * mass

    def words(self, slot: str) -> Masses:
        """What the slot holds; every story that comes here must have filled it."""
        masses = self.slots.get(slot, {})
        if not math.isclose(math.fsum(masses.values()), self.mass, rel_tol=1e-9):
            raise ConfigError(f"a story can come to {{{slot}}} without a {slot}\nfix: draw it on every way there")
        return masses


def compute_entropy(grammar: Grammar) -> EntropyFloor:
    """Follow all stories at once, step by step."""
    arrivals: defaultdict[GrammarNode, _Arrivals] = defaultdict(_Arrivals)
    arrivals[grammar.start].mass = 1.0
    nats, length = [], []
    for step in reversed(grammar.steps):  # all ways to a step come before it
        here = arrivals.pop(step, _Arrivals())
        if isinstance(step, EndNode):
            continue
        if isinstance(step, BranchNode):
            nats.append(here.mass * step.ways.entropy)
            for way, share in zip(step.ways.options, step.ways.probabilities, strict=True):
                arrivals[way].add(here, share)
            continue
        if isinstance(step, TextNode):
            length.append(here.mass * _bytes(step.text))
        elif isinstance(step, SlotNode):
            length += [mass * _bytes(word.form(step.form)) for word, mass in here.words(step.slot).items()]
        elif isinstance(step, DrawNode):
            cost, drawn = _draw(step, here)
            nats.append(cost)
            length += [mass * _bytes(word.form(step.form)) for word, mass in drawn.items()]
            here.slots[step.slot] = drawn
        arrivals[step.next].add(here, 1.0)
    return EntropyFloor(math.fsum(nats) / math.log(2), math.fsum(length))


def _draw(step: DrawNode, here: _Arrivals) -> tuple[float, Masses]:
    """What a draw costs on average, and what it leaves in its slot."""
    cost, drawn = 0.0, defaultdict[Word, float](float)
    others = {None: here.mass} if step.other is None else here.words(step.other)
    for other, mass in others.items():
        odds = step.odds(other)
        cost += mass * odds.entropy
        for word, share in zip(odds.options, odds.probabilities, strict=True):
            drawn[word] += mass * share
    return cost, dict(drawn)


def _bytes(text: str) -> int:
    return len(text.encode())
