"""Sentence templates: text -> parts.

Once there was {hero=person as a}.      draw a word from the table `person`, store it in slot `hero`, write its form "a"
{friend=person not hero}                draw a word other than the one in `hero`
{food=friend.foods}                     draw from the list `foods` of the word in slot `friend`
{hero} smiled, and {hero.he} ran.       write the word in a slot, or one of its forms
It was [warm|cold].                     one of several alternatives, the most frequent first; may be empty
<greeting>                              expand a rule: one of its alternatives
"""

import re

from normscope.errors import ConfigError

Template = tuple["re.Match[str] | tuple[Template, ...]", ...]
"""The parts of a template: matches of `TOKEN`, and the options of each [...]."""

TOKEN = re.compile(
    r"(?P<plain>[^][{}<>|]+)"
    r"|\{(?P<slot>\w+)(\.(?P<slot_form>\w+))?\}"
    r"|\{(?P<drawn>\w+)=(?P<source>\w+(\.\w+)?)( as (?P<form>\w+))?( not (?P<unlike>\w+))?\}"
    r"|<(?P<rule>[\w ]+)>"
    r"|(?P<mark>[][|])"
)


def parse_template(text: str) -> Template:
    """Parse a template.

    >>> slot, text, (down, still), end = parse_template("{hero} sat [down|still].")
    >>> slot["slot"], text["plain"], down[0]["plain"], still[0]["plain"], end["plain"]
    ('hero', ' sat ', 'down', 'still', '.')
    """
    stack: list[list[Template]] = []  # for each open '[': the parts before it, then its options so far
    parts: Template = ()
    position = 0
    while position < len(text):
        token = TOKEN.match(text, position)
        if token is None:
            raise _syntax_error(text, position, f"unexpected {text[position : position + 12]!r}")
        position = token.end()
        if token["mark"] == "[":
            stack.append([parts])
            parts = ()
        elif token["mark"] is not None:
            if not stack:
                raise _syntax_error(text, token.start(), f"{token['mark']!r} outside of [...]")
            stack[-1].append(parts)
            parts = ()
            if token["mark"] == "]":
                before, *options = stack.pop()
                parts = (*before, tuple(options))
        else:
            parts = (*parts, token)
    if stack:
        raise _syntax_error(text, len(text), "unclosed '['")
    return parts


def _syntax_error(text: str, position: int, problem: str) -> ConfigError:
    return ConfigError(
        f"{problem} at character {position} of {text!r}\nfix: see normscope.data.stories.template for the syntax"
    )
