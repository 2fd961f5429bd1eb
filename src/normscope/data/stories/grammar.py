"""A grammar: rules and tables, laid out as the steps that lead from the first word of a story to its end.

Telling a story, reading one and knowing what to expect of all are three ways to walk the same steps.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from normscope.data.stories.notation import Choice, Drawn, Named, Plain, Recalled, Text, read
from normscope.data.stories.probabilities import Odds
from normscope.data.stories.vocabulary import Table, Word
from normscope.errors import ConfigError

Memory = Mapping[str, Word]


@dataclass(frozen=True, eq=False, slots=True)
class Write:
    """Words that are always there."""

    text: str
    next: "Step"


@dataclass(frozen=True, eq=False, slots=True)
class Recall:
    """A form of a word that is remembered."""

    slot: str
    form: str
    next: "Step"


@dataclass(frozen=True, eq=False, slots=True)
class Fork:
    """One of several ways to go on."""

    ways: Odds["Step"]


@dataclass(frozen=True, eq=False, slots=True)
class Draw:
    """A word from a table, to be written and remembered.

    At most one earlier slot has a say, either as the owner of the table (`list` is one of its lists) or as the word
    that must not come again. So what to expect can be told slot by slot: see `expectation`.
    """

    slot: str
    form: str
    table: Table | None
    other: str | None
    list: str | None
    next: "Step"

    def odds(self, other: Word | None) -> Odds[Word]:
        """How likely each word is, given the word in the slot `other`, if there is one."""
        if self.table is not None:
            return self.table.odds(unlike=other)
        assert other is not None  # what has no table of its own draws from a list of the other
        assert self.list is not None
        return other.list(self.list).odds()


@dataclass(frozen=True, eq=False, slots=True)
class End:
    """Here a story is over."""


Step = Write | Recall | Fork | Draw | End


class Grammar:
    """Rules and tables, made into steps.

    Args:
        rules: for each name, the texts of which one is taken, in the notation of `notation`, the frequent ones first.
        tables: for each name, the words to draw from.
        start: the rule that is a whole story.

    >>> pets = [Word("owl"), Word("hen")]
    >>> grammar = Grammar({"start": ["A [cat|dog] met {pet=pets as a}."]}, {"pets": pets}, start="start")
    >>> type(grammar.start).__name__, len(grammar.steps)
    ('Write', 8)
    """

    def __init__(self, rules: Mapping[str, Sequence[str]], tables: Mapping[str, Sequence[Word]], start: str) -> None:
        self._rules = {name: tuple(read(text) for text in texts) for name, texts in rules.items()}
        self._tables = {name: Table(words) for name, words in tables.items()}
        self.steps: list[Step] = []
        """Every step, each after all those that can follow it."""
        self.start = self._named(start, self._add(End()), ())

    def _add(self, step: Step) -> Step:
        self.steps.append(step)
        return step

    def _text(self, text: Text, after: Step, within: tuple[str, ...]) -> Step:
        """The steps of a text, laid from its end to its beginning; `within` are the rules that it stands in."""
        for part in reversed(text):
            match part:
                case Plain(words):
                    after = self._add(Write(words, after))
                case Recalled(slot, form):
                    after = self._add(Recall(slot, form, after))
                case Drawn():
                    after = self._add(self._draw(part, after))
                case Choice(options):
                    after = self._fork(options, after, within)
                case Named(rule):
                    after = self._named(rule, after, within)
        return after

    def _fork(self, options: Sequence[Text], after: Step, within: tuple[str, ...]) -> Step:
        ways = [self._text(option, after, within) for option in options]
        return ways[0] if len(ways) == 1 else self._add(Fork(Odds(ways)))

    def _named(self, rule: str, after: Step, within: tuple[str, ...]) -> Step:
        if not self._rules.get(rule):
            raise ConfigError(f"there is no rule <{rule}>\nfix: use one of {', '.join(sorted(self._rules))}")
        if rule in within:
            raise ConfigError(
                f"the rule <{rule}> comes back to itself\nfix: a story has to end; leave <{rule}> out of it"
            )
        return self._fork(self._rules[rule], after, (*within, rule))

    def _draw(self, part: Drawn, after: Step) -> Draw:
        owner, _, name = part.source.rpartition(".")
        if not owner:
            if name not in self._tables:
                raise ConfigError(f"there is no table {name!r}\nfix: use one of {', '.join(sorted(self._tables))}")
            table = self._tables[name]
            table.check_distinct(part.form)
            return Draw(part.slot, part.form, table, part.unlike, None, after)
        if part.unlike is not None:
            raise ConfigError(
                f"{{{part.slot}={part.source}}} looks at {owner} and at {part.unlike}\n"
                f"fix: let it look at one earlier word only, so that the floor can be computed"
            )
        return Draw(part.slot, part.form, None, owner, name, after)
