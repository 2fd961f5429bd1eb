"""Parse stories: a text -> its derivations and their probabilities."""

import math
import reprlib
from collections.abc import Iterator
from itertools import takewhile
from typing import NamedTuple

from normscope.data.stories.grammar import (
    BranchNode,
    DrawNode,
    EndNode,
    Grammar,
    GrammarNode,
    SlotNode,
    SlotValues,
    TextNode,
)
from normscope.errors import ArgumentTypeError, NormscopeError


class NotAStoryError(NormscopeError, ValueError):
    """A text that the grammar cannot generate. `position` is the first character that does not fit."""

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message, position)
        self.message = message
        self.position = position

    def __str__(self) -> str:
        return self.message


class _PartialParse(NamedTuple):
    """A derivation of the text before `position`: the next node, the filled slots, and the cost."""

    node: GrammarNode
    position: int
    slots: SlotValues
    nats: float


def derivations(grammar: Grammar, text: str) -> list[float]:
    """Return the cost in nats of each derivation of this text; one for an unambiguous grammar.

    Raises:
        NotAStoryError: the text has no derivation.
    """
    if not isinstance(text, str):
        raise ArgumentTypeError(f"a story must be a str, but got {type(text).__name__}: {reprlib.repr(text)}")
    costs: list[float] = []
    failures: dict[int, set[str]] = {}  # by position: the texts that would have fitted
    pending = [_PartialParse(grammar.start, 0, {}, 0.0)]
    while pending:
        partial = pending.pop()
        if isinstance(partial.node, EndNode):
            if partial.position == len(text):
                costs.append(partial.nats)
            else:
                failures.setdefault(partial.position, set()).add("the end")
            continue
        for expected, after in _continuations(partial):
            if text.startswith(expected, partial.position):
                pending.append(after)
            else:
                matched = _common_prefix(expected, text[partial.position : partial.position + len(expected)])
                failures.setdefault(partial.position + matched, set()).add(repr(expected[matched:]))
    if not costs:
        raise _not_a_story(text, max(failures), failures[max(failures)])
    return costs


def nats(grammar: Grammar, text: str) -> float:
    """Return -ln of the probability of this text, summed over all derivations."""
    costs = derivations(grammar, text)
    least = min(costs)
    return least - math.log(math.fsum(math.exp(least - cost) for cost in costs))


def _continuations(partial: _PartialParse) -> Iterator[tuple[str, _PartialParse]]:
    """Yield each text that can come next, with the state after it."""
    node, position, slots, cost = partial
    if isinstance(node, BranchNode):
        for branch, more in zip(node.branches.options, node.branches.nats, strict=True):
            yield "", _PartialParse(branch, position, slots, cost + more)
    elif isinstance(node, TextNode):
        yield node.text, _PartialParse(node.next, position + len(node.text), slots, cost)
    elif isinstance(node, SlotNode):
        text = slots[node.slot].form(node.form)
        yield text, _PartialParse(node.next, position + len(text), slots, cost)
    elif isinstance(node, DrawNode):
        distribution = node.distribution(slots)
        for word, more in zip(distribution.options, distribution.nats, strict=True):
            text = word.form(node.form)
            yield text, _PartialParse(node.next, position + len(text), {**slots, node.slot: word}, cost + more)


def _common_prefix(one: str, other: str) -> int:
    """Return the length of the common prefix."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _not_a_story(text: str, position: int, expected: set[str]) -> NotAStoryError:
    shown = sorted(expected)
    more = f" and {len(shown) - 6} more" if len(shown) > 6 else ""
    got = repr(text[position : position + 30]) if position < len(text) else "the end"
    return NotAStoryError(
        f"the grammar cannot generate this text, from character {position} on\n"
        f"    after {text[max(0, position - 40) : position]!r}\n"
        f"    got {got}\n"
        f"    expected {' or '.join(shown[:6])}{more}\n"
        f"fix: pass the whole text of one story from stories()",
        position,
    )
