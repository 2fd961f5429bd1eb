"""A grammar: rules and tables, laid out as the steps that lead from the first word of a story to its end.

Telling a story, reading one and knowing what to expect of all are three ways to walk the same steps.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from normscope.data.stories.categorical import Categorical
from normscope.data.stories.template import (
    Alternatives,
    PlainText,
    RuleReference,
    SlotDraw,
    SlotReference,
    Template,
    parse_template,
)
from normscope.data.stories.vocabulary import Word, WordTable
from normscope.errors import ConfigError

SlotValues = Mapping[str, Word]


@dataclass(frozen=True, eq=False, slots=True)
class TextNode:
    """Words that are always there."""

    text: str
    next: "GrammarNode"


@dataclass(frozen=True, eq=False, slots=True)
class SlotNode:
    """A form of a word that is remembered."""

    slot: str
    form: str
    next: "GrammarNode"


@dataclass(frozen=True, eq=False, slots=True)
class BranchNode:
    """One of several ways to go on."""

    ways: Categorical["GrammarNode"]


@dataclass(frozen=True, eq=False, slots=True)
class DrawNode:
    """A word from a table, to be written and remembered.

    At most one earlier slot has a say, either as the owner of the table (`list` is one of its lists) or as the word
    that must not come again. So what to expect can be told slot by slot: see `expectation`.
    """

    slot: str
    form: str
    table: WordTable | None
    other: str | None
    list: str | None
    next: "GrammarNode"

    def odds(self, other: Word | None) -> Categorical[Word]:
        """How likely each word is, given the word in the slot `other`, if there is one."""
        if self.table is not None:
            return self.table.odds(unlike=other)
        assert other is not None  # what has no table of its own draws from a list of the other
        assert self.list is not None
        return other.list(self.list).odds()


@dataclass(frozen=True, eq=False, slots=True)
class EndNode:
    """Here a story is over."""


GrammarNode = TextNode | SlotNode | BranchNode | DrawNode | EndNode


class Grammar:
    """Rules and tables, made into steps.

    Args:
        rules: for each name, the texts of which one is taken, in the notation of `notation`, the frequent ones first.
        tables: for each name, the words to draw from.
        start: the rule that is a whole story.

    >>> pets = [Word("owl"), Word("hen")]
    >>> grammar = Grammar({"start": ["A [cat|dog] met {pet=pets as a}."]}, {"pets": pets}, start="start")
    >>> type(grammar.start).__name__, len(grammar.steps)
    ('TextNode', 8)
    """

    def __init__(self, rules: Mapping[str, Sequence[str]], tables: Mapping[str, Sequence[Word]], start: str) -> None:
        self._rules = {name: tuple(parse_template(text) for text in texts) for name, texts in rules.items()}
        self._tables = {name: WordTable(words) for name, words in tables.items()}
        self.steps: list[GrammarNode] = []
        """Every step, each after all those that can follow it."""
        self.start = self._named(start, self._add(EndNode()), ())

    def _add(self, step: GrammarNode) -> GrammarNode:
        self.steps.append(step)
        return step

    def _text(self, text: Template, after: GrammarNode, within: tuple[str, ...]) -> GrammarNode:
        """The steps of a text, laid from its end to its beginning; `within` are the rules that it stands in."""
        for part in reversed(text):
            match part:
                case PlainText(words):
                    after = self._add(TextNode(words, after))
                case SlotReference(slot, form):
                    after = self._add(SlotNode(slot, form, after))
                case SlotDraw():
                    after = self._add(self._draw(part, after))
                case Alternatives(options):
                    after = self._fork(options, after, within)
                case RuleReference(rule):
                    after = self._named(rule, after, within)
        return after

    def _fork(self, options: Sequence[Template], after: GrammarNode, within: tuple[str, ...]) -> GrammarNode:
        ways = [self._text(option, after, within) for option in options]
        return ways[0] if len(ways) == 1 else self._add(BranchNode(Categorical(ways)))

    def _named(self, rule: str, after: GrammarNode, within: tuple[str, ...]) -> GrammarNode:
        if not self._rules.get(rule):
            raise ConfigError(f"there is no rule <{rule}>\nfix: use one of {', '.join(sorted(self._rules))}")
        if rule in within:
            raise ConfigError(
                f"the rule <{rule}> comes back to itself\nfix: a story has to end; leave <{rule}> out of it"
            )
        return self._fork(self._rules[rule], after, (*within, rule))

    def _draw(self, part: SlotDraw, after: GrammarNode) -> DrawNode:
        owner, _, name = part.source.rpartition(".")
        if not owner:
            if name not in self._tables:
                raise ConfigError(f"there is no table {name!r}\nfix: use one of {', '.join(sorted(self._tables))}")
            table = self._tables[name]
            table.check_distinct(part.form)
            return DrawNode(part.slot, part.form, table, part.unlike, None, after)
        if part.unlike is not None:
            raise ConfigError(
                f"{{{part.slot}={part.source}}} looks at {owner} and at {part.unlike}\n"
                f"fix: let it look at one earlier word only, so that the floor can be computed"
            )
        return DrawNode(part.slot, part.form, None, owner, name, after)
