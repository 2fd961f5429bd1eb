"""Sentence templates: text -> parts.

Once there was {hero=person as a}.      draw a word from the table `person`, store it in slot `hero`, write its form "a"
{friend=person not hero}                draw a word other than the one in `hero`
{food=friend.foods}                     draw from the list `foods` of the word in slot `friend`
{hero} smiled, and {hero.he} ran.       write the word in a slot, or one of its forms
It was [warm|cold].                     one of several alternatives, the most frequent first; may be empty
<greeting>                              expand a rule: one of its alternatives
"""

import re
from dataclasses import dataclass

from normscope.errors import ConfigError


@dataclass(frozen=True)
class PlainText:
    """Literal text."""

    text: str


@dataclass(frozen=True)
class SlotDraw:
    """`{slot=source as form not unlike}`. The source is a table, or `other.list` for a list of the word in a slot."""

    slot: str
    source: str
    form: str
    unlike: str | None


@dataclass(frozen=True)
class SlotReference:
    """`{slot.form}`"""

    slot: str
    form: str


@dataclass(frozen=True)
class RuleReference:
    """`<rule>`"""

    rule: str


@dataclass(frozen=True)
class Alternatives:
    """`[one|other]`"""

    options: tuple["Template", ...]


TemplatePart = PlainText | SlotDraw | SlotReference | RuleReference | Alternatives
Template = tuple[TemplatePart, ...]

_TOKEN = re.compile(
    r"(?P<plain>[^][{}<>|]+)"
    r"|\{(?P<slot>\w+)(\.(?P<slot_form>\w+))?\}"
    r"|\{(?P<drawn>\w+)=(?P<source>\w+(\.\w+)?)( as (?P<form>\w+))?( not (?P<unlike>\w+))?\}"
    r"|<(?P<rule>[\w ]+)>"
    r"|(?P<mark>[][|])"
)


def parse_template(text: str) -> Template:
    """Parse a template.

    >>> parse_template("{hero} sat [down|still].")
    (SlotReference(slot='hero', form=''), PlainText(text=' sat '), Alternatives(options=((PlainText(text='down'),), \
(PlainText(text='still'),))), PlainText(text='.'))
    """
    stack: list[list[list[TemplatePart]]] = []  # for each open '[': the parts before it, then its options so far
    parts: list[TemplatePart] = []
    position = 0
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None:
            raise _syntax_error(text, position, f"unexpected {text[position : position + 12]!r}")
        position = token.end()
        if token["mark"] == "[":
            stack.append([parts])
            parts = []
        elif token["mark"] is not None:
            if not stack:
                raise _syntax_error(text, token.start(), f"{token['mark']!r} outside of [...]")
            stack[-1].append(parts)
            parts = []
            if token["mark"] == "]":
                before, *options = stack.pop()
                parts = [*before, Alternatives(tuple(tuple(option) for option in options))]
        else:
            parts.append(_part(token))
    if stack:
        raise _syntax_error(text, len(text), "unclosed '['")
    return tuple(parts)


def _part(token: re.Match[str]) -> TemplatePart:
    if token["plain"] is not None:
        return PlainText(token["plain"])
    if token["rule"] is not None:
        return RuleReference(token["rule"])
    if token["slot"] is not None:
        return SlotReference(token["slot"], token["slot_form"] or "")
    return SlotDraw(token["drawn"], token["source"], token["form"] or "", token["unlike"])


def _syntax_error(text: str, position: int, problem: str) -> ConfigError:
    return ConfigError(
        f"{problem} at character {position} of {text!r}\nfix: see normscope.data.stories.template for the syntax"
    )
