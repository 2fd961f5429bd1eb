"""The notation that stories are written in: text -> parts.

Once there was {hero=person as a}.      draw a person, remember it as hero, and write the form "a"
{friend=person not hero}                draw someone else
{food=friend.foods}                     draw from a list that the remembered friend brings along
{hero} smiled, and {hero.he} ran.       recall the word itself, or one of its forms
It was [warm|cold].                     one of several, the frequent ones first; nothing at all is one, too
<greeting>                              a rule: a list of such texts, of which one is taken
"""

import re
from dataclasses import dataclass

from normscope.errors import ConfigError


@dataclass(frozen=True)
class PlainText:
    """Words as they stand."""

    text: str


@dataclass(frozen=True)
class SlotDraw:
    """`{slot=source as form not unlike}`: the source is a table, or `other.list` of an earlier slot."""

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
    r"|\{(?P<slot>\w+)(\.(?P<recalled>\w+))?\}"
    r"|\{(?P<drawn>\w+)=(?P<source>\w+(\.\w+)?)( as (?P<form>\w+))?( not (?P<unlike>\w+))?\}"
    r"|<(?P<rule>[\w ]+)>"
    r"|(?P<mark>[][|])"
)


def parse_template(text: str) -> Template:
    """Read one text of the notation.

    >>> parse_template("{hero} sat [down|still].")
    (SlotReference(slot='hero', form=''), PlainText(text=' sat '), Alternatives(options=((PlainText(text='down'),), \
(PlainText(text='still'),))), PlainText(text='.'))
    """
    open_choices: list[list[list[TemplatePart]]] = []  # for each '[' that is open, the options so far
    parts: list[TemplatePart] = []
    place = 0
    while place < len(text):
        token = _TOKEN.match(text, place)
        if token is None:
            raise _fault(text, place, "cannot be read")
        place = token.end()
        if token["mark"] == "[":
            open_choices.append([parts])
            parts = []
        elif token["mark"] is not None:
            if not open_choices:
                raise _fault(text, token.start(), "stands outside of any [...]")
            open_choices[-1].append(parts)
            parts = []
            if token["mark"] == "]":
                before, *options = open_choices.pop()
                parts = [*before, Alternatives(tuple(tuple(option) for option in options))]
        else:
            parts.append(_part(token))
    if open_choices:
        raise _fault(text, len(text), "comes before every '[' is closed", what="the end")
    return tuple(parts)


def _part(token: re.Match[str]) -> TemplatePart:
    if token["plain"] is not None:
        return PlainText(token["plain"])
    if token["rule"] is not None:
        return RuleReference(token["rule"])
    if token["slot"] is not None:
        return SlotReference(token["slot"], token["recalled"] or "")
    return SlotDraw(token["drawn"], token["source"], token["form"] or "", token["unlike"])


def _fault(text: str, place: int, problem: str, what: str | None = None) -> ConfigError:
    got = what or repr(text[place : place + 12])
    return ConfigError(
        f"{got} {problem}, at character {place} of {text!r}\nfix: write it as normscope.data.stories.template tells"
    )
