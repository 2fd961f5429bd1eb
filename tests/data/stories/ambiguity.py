"""A proof, not a sample: no text of a grammar can be made in two ways.

Two ways to make one text part somewhere and come together again, at the end at the latest. So all pairs of ways that
have just parted are followed for as long as they write the same letters. If no pair ever meets again, there are no two
ways. To keep the pairs few, a recalled word may be any that the slot ever holds: that adds ways and hides none.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from normscope.data.stories.grammar import BranchNode, DrawNode, EndNode, Grammar, GrammarNode, SlotNode, TextNode
from normscope.data.stories.vocabulary import Word


@dataclass(frozen=True)
class Way:
    """Letters that are still to be written, by which step; the step after it goes on."""

    step: GrammarNode
    letters: str


class Proof:
    """Looks for two ways to make one text."""

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
        self.held: defaultdict[str, set[Word]] = defaultdict(set)
        for step in reversed(grammar.steps):  # the owner of a list is drawn before the list is drawn from
            if isinstance(step, DrawNode):
                self.held[step.slot].update(self.drawn(step))

    def drawn(self, step: DrawNode) -> list[Word]:
        if step.table is not None:
            return list(step.table.words)
        assert step.other is not None
        assert step.list is not None
        return [word for owner in self.held[step.other] for word in owner.list(step.list).words]

    def ways(self, step: GrammarNode) -> Iterator[Way]:
        """All ways to write the next letters; twice the same, if there are two ways to come to it without a letter."""
        if isinstance(step, EndNode):
            yield Way(step, "\0")
        elif isinstance(step, BranchNode):
            for way in step.ways.options:
                yield from self.ways(way)
        elif isinstance(step, TextNode):
            yield Way(step, step.text)
        else:
            words = self.drawn(step) if isinstance(step, DrawNode) else self.held[step.slot]
            for letters in sorted({word.form(step.form) for word in words}):
                yield Way(step, letters)

    def further(self, way: Way) -> list[Way]:
        if way.letters or isinstance(way.step, EndNode):
            return [way]
        assert isinstance(way.step, TextNode | SlotNode | DrawNode)
        return list(self.ways(way.step.next))

    def meetings(self) -> Iterator[str]:
        """Where two ways that had parted meet again: the letters on which they agreed last."""
        pairs = [
            (one, other, "")
            for step in self.grammar.steps
            if not isinstance(step, TextNode | EndNode)
            for one, other in combinations(self.ways(step), 2)
            if one.letters[:1] == other.letters[:1]
        ]
        seen = set()
        while pairs:
            one, other, trail = pairs.pop()
            if one == other:
                yield trail
                continue
            length = min(len(one.letters), len(other.letters))
            if one.letters[:length] != other.letters[:length] or (one, other) in seen:
                continue
            seen.add((one, other))
            trail = (trail + one.letters[:length])[-60:]
            rests = [self.further(Way(way.step, way.letters[length:])) for way in (one, other)]
            pairs += [(a, b, trail) for a in rests[0] for b in rests[1]]


def meetings(grammar: Grammar) -> list[str]:
    return sorted(set(Proof(grammar).meetings()))
