"""Reading: from a text back to the choices that made it."""

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
from normscope.errors import DtypeError, NormscopeError


class NotAStoryError(NormscopeError, ValueError):
    """A text that the grammar cannot make. `place` is where it stopped being a story."""

    def __init__(self, message: str, place: int) -> None:
        super().__init__(message, place)
        self.message = message
        self.place = place

    def __str__(self) -> str:
        return self.message


class _Thread(NamedTuple):
    """One way to have come so far: where the grammar stands, where the text, what is remembered, what it cost."""

    step: GrammarNode
    place: int
    memory: SlotValues
    nats: float


def derivations(grammar: Grammar, text: str) -> list[float]:
    """What each way to make this text costs, in nats; of an unambiguous grammar, a list of one.

    Every way is followed for as long as the text agrees. Raises a `NotAStoryError` if none leads to the end.
    """
    if not isinstance(text, str):
        raise DtypeError(f"a story is a text, but got {type(text).__name__}: {reprlib.repr(text)}")
    found: list[float] = []
    failures: dict[int, set[str]] = {}  # what was wanted instead, by place
    threads = [_Thread(grammar.start, 0, {}, 0.0)]
    while threads:
        thread = threads.pop()
        if isinstance(thread.step, EndNode):
            if thread.place == len(text):
                found.append(thread.nats)
            else:
                failures.setdefault(thread.place, set()).add("the end")
            continue
        for words, after in _ways_on(thread):
            if text.startswith(words, thread.place):
                threads.append(after)
            else:
                agreed = _agreement(words, text[thread.place : thread.place + len(words)])
                failures.setdefault(thread.place + agreed, set()).add(repr(words[agreed:]))
    if not found:
        raise _not_a_story(text, max(failures), failures[max(failures)])
    return found


def nats(grammar: Grammar, text: str) -> float:
    """-ln of the probability that this text is told, summed over all ways to make it."""
    costs = derivations(grammar, text)
    least = min(costs)
    return least - math.log(math.fsum(math.exp(least - cost) for cost in costs))


def _ways_on(thread: _Thread) -> Iterator[tuple[str, _Thread]]:
    """The words that can come next, each with where they lead."""
    step, place, memory, cost = thread.step, thread.place, thread.memory, thread.nats
    if isinstance(step, BranchNode):
        for way, more in zip(step.ways.options, step.ways.nats, strict=True):
            yield "", _Thread(way, place, memory, cost + more)
    elif isinstance(step, TextNode):
        yield step.text, _Thread(step.next, place + len(step.text), memory, cost)
    elif isinstance(step, SlotNode):
        words = memory[step.slot].form(step.form)
        yield words, _Thread(step.next, place + len(words), memory, cost)
    elif isinstance(step, DrawNode):
        odds = step.odds(None if step.other is None else memory[step.other])
        for word, more in zip(odds.options, odds.nats, strict=True):
            words = word.form(step.form)
            yield words, _Thread(step.next, place + len(words), {**memory, step.slot: word}, cost + more)


def _agreement(words: str, text: str) -> int:
    """How many characters are the same from the beginning."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(words, text, strict=False)))


def _not_a_story(text: str, place: int, wanted: set[str]) -> NotAStoryError:
    shown = sorted(wanted)
    more = f" and {len(shown) - 6} more" if len(shown) > 6 else ""
    got = repr(text[place : place + 30]) if place < len(text) else "the end"
    return NotAStoryError(
        f"this is no story that the grammar tells, from character {place} on\n"
        f"    after {text[max(0, place - 40) : place]!r}\n"
        f"    got {got}\n"
        f"    wanted {' or '.join(shown[:6])}{more}\n"
        f"fix: give the whole text of one story, as stories() made it",
        place,
    )
