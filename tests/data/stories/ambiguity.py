"""Prove that a grammar is unambiguous: no text has two derivations.

Two derivations of one text diverge at some node and meet again, at the end at the latest. So all pairs of paths that
have just diverged are followed for as long as they write the same characters. If no pair ever meets again, the grammar
is unambiguous. To keep the number of pairs small, a slot may hold any word that is ever drawn into it; this adds paths
and hides none.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from normscope.data.stories.grammar import BranchNode, DrawNode, EndNode, Grammar, GrammarNode, SlotNode, TextNode
from normscope.data.stories.vocabulary import Word


@dataclass(frozen=True)
class Path:
    """A node and the characters it still has to write."""

    node: GrammarNode
    pending: str


class AmbiguitySearch:
    """Search for two derivations of one text."""

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
        self.slot_words: defaultdict[str, set[Word]] = defaultdict(set)
        for node in reversed(grammar.nodes):  # the owner of a list is drawn before the list is drawn from
            if isinstance(node, DrawNode):
                self.slot_words[node.slot].update(self.drawn(node))

    def drawn(self, node: DrawNode) -> list[Word]:
        if node.table is not None:
            return list(node.table.words)
        assert node.other is not None
        assert node.list is not None
        return [word for owner in self.slot_words[node.other] for word in owner.list(node.list).words]

    def paths(self, node: GrammarNode) -> Iterator[Path]:
        """All paths from a node to its next characters; repeated if two lead to the same ones without a character."""
        if isinstance(node, EndNode):
            yield Path(node, "\0")
        elif isinstance(node, BranchNode):
            for branch in node.branches.options:
                yield from self.paths(branch)
        elif isinstance(node, TextNode):
            yield Path(node, node.text)
        else:
            words = self.drawn(node) if isinstance(node, DrawNode) else self.slot_words[node.slot]
            for text in sorted({word.form(node.form) for word in words}):
                yield Path(node, text)

    def advance(self, path: Path) -> list[Path]:
        if path.pending or isinstance(path.node, EndNode):
            return [path]
        assert isinstance(path.node, TextNode | SlotNode | DrawNode)
        return list(self.paths(path.node.next))

    def ambiguities(self) -> Iterator[str]:
        """Where two diverged paths meet again: the last characters both wrote."""
        pairs = [
            (one, other, "")
            for node in self.grammar.nodes
            if not isinstance(node, TextNode | EndNode)
            for one, other in combinations(self.paths(node), 2)
            if one.pending[:1] == other.pending[:1]
        ]
        seen = set()
        while pairs:
            one, other, written = pairs.pop()
            if one == other:
                yield written
                continue
            length = min(len(one.pending), len(other.pending))
            if one.pending[:length] != other.pending[:length] or (one, other) in seen:
                continue
            seen.add((one, other))
            written = (written + one.pending[:length])[-60:]
            rests = [self.advance(Path(path.node, path.pending[length:])) for path in (one, other)]
            pairs += [(a, b, written) for a in rests[0] for b in rests[1]]


def ambiguities(grammar: Grammar) -> list[str]:
    return sorted(set(AmbiguitySearch(grammar).ambiguities()))
