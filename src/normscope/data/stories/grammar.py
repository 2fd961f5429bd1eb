"""The grammar as a graph of nodes from the start of a story to its end.

Generating a story, parsing one, and computing the entropy are three traversals of the same graph.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from normscope.data.stories.template import Template, parse_template
from normscope.data.stories.vocabulary import Categorical, Word, WordTable
from normscope.errors import ConfigError

SlotValues = Mapping[str, Word]


@dataclass(frozen=True, eq=False, slots=True)
class TextNode:
    """Write literal text."""

    text: str
    next: "GrammarNode"


@dataclass(frozen=True, eq=False, slots=True)
class SlotNode:
    """Write a form of the word in a slot."""

    slot: str
    form: str
    next: "GrammarNode"


@dataclass(frozen=True, eq=False, slots=True)
class BranchNode:
    """Continue with one of several nodes."""

    branches: Categorical["GrammarNode"]


@dataclass(frozen=True, eq=False, slots=True)
class DrawNode:
    """Draw a word, store it in a slot and write it.

    The draw depends on at most one other slot: either its word owns the list to draw from (`list`), or it is the word
    to exclude. `entropy` relies on this to follow each slot separately.
    """

    slot: str
    form: str
    table: WordTable | None
    other: str | None
    list: str | None
    next: "GrammarNode"

    def distribution(self, slots: SlotValues) -> Categorical[Word]:
        """Return the distribution of the word, given the words in the slots."""
        return self.distribution_given(None if self.other is None else slots[self.other])

    def distribution_given(self, other: Word | None) -> Categorical[Word]:
        """Return the distribution of the word, given the word in the slot `other`."""
        if self.table is not None:
            return self.table.distribution(unlike=other)
        assert other is not None  # a draw without a table draws from a list of the other word
        assert self.list is not None
        return other.list(self.list).distribution()


@dataclass(frozen=True, eq=False, slots=True)
class EndNode:
    """The end of the story."""


GrammarNode = TextNode | SlotNode | BranchNode | DrawNode | EndNode


class Grammar:
    """Rules and word tables, compiled into a graph.

    Args:
        rules: for each rule, its alternatives: templates in the syntax of `template`, the most frequent first.
        tables: for each table, its words, the most frequent first.
        start: the rule that generates a whole story.

    >>> pets = [Word("owl"), Word("hen")]
    >>> grammar = Grammar({"start": ["A [cat|dog] met {pet=pets as a}."]}, {"pets": pets}, start="start")
    >>> type(grammar.start).__name__, len(grammar.nodes)
    ('TextNode', 8)
    """

    def __init__(self, rules: Mapping[str, Sequence[str]], tables: Mapping[str, Sequence[Word]], start: str) -> None:
        self._rules = {name: tuple(parse_template(text) for text in texts) for name, texts in rules.items()}
        self._tables = {name: WordTable(words) for name, words in tables.items()}
        self.nodes: list[GrammarNode] = []
        """All nodes in reverse topological order: successors come first."""
        self.start = self._rule(start, self._add(EndNode()), ())

    def _add(self, node: GrammarNode) -> GrammarNode:
        self.nodes.append(node)
        return node

    def _template(self, template: Template, after: GrammarNode, within: tuple[str, ...]) -> GrammarNode:
        """Build a template's nodes from its end to its start. `within` lists the rules that are being expanded."""
        for part in reversed(template):
            if isinstance(part, tuple):
                after = self._branch(part, after, within)
            elif part["plain"]:
                after = self._add(TextNode(part["plain"], after))
            elif part["rule"]:
                after = self._rule(part["rule"], after, within)
            elif part["slot"]:
                after = self._add(SlotNode(part["slot"], part["slot_form"] or "", after))
            else:
                after = self._add(self._draw(part, after))
        return after

    def _branch(self, options: Sequence[Template], after: GrammarNode, within: tuple[str, ...]) -> GrammarNode:
        branches = [self._template(option, after, within) for option in options]
        return branches[0] if len(branches) == 1 else self._add(BranchNode(Categorical(branches)))

    def _rule(self, rule: str, after: GrammarNode, within: tuple[str, ...]) -> GrammarNode:
        if not self._rules.get(rule):
            raise ConfigError(f"there is no rule <{rule}>\nfix: use one of {', '.join(sorted(self._rules))}")
        if rule in within:
            raise ConfigError(
                f"the rule <{rule}> is recursive\nfix: stories must end; do not use <{rule}> within itself"
            )
        return self._branch(self._rules[rule], after, (*within, rule))

    def _draw(self, token: re.Match[str], after: GrammarNode) -> DrawNode:
        slot, source, form, unlike = token["drawn"], token["source"], token["form"] or "", token["unlike"]
        owner, _, name = source.rpartition(".")
        if not owner:
            if name not in self._tables:
                raise ConfigError(f"there is no table {name!r}\nfix: use one of {', '.join(sorted(self._tables))}")
            self._tables[name].check_distinct(form)
            return DrawNode(slot, form, self._tables[name], unlike, None, after)
        if unlike is not None:
            raise ConfigError(
                f"{{{slot}={source}}} depends on two slots, {owner} and {unlike}\n"
                f"fix: depend on one slot only, so that the entropy can be computed"
            )
        return DrawNode(slot, form, None, owner, name, after)
