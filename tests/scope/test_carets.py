"""Carets stand under the fault on a screen, whatever the text holds.

A blank of any kind takes one column, a character of East Asia two, and what a screen would not show gets a stand-in.
"""

import pytest

from normscope.errors import ScopeError
from normscope.scope import Scope
from normscope.scope.grammar import parse
from tests.pairs import chiefly

# The faulty text, the nearest text that is right, and the whole message of the faulty one.
FAULTS = {
    "tab and line break before the fault": (
        "n\t[c\n h",
        "n\t[c\n h]",
        """\
unclosed '['
    n [c  h
      ^
fix: add the matching ']'""",
    ),
    "wide character": (
        "n [c 高]",
        "n [c h]",
        """\
unexpected '高' in a scope
    n [c 高]
         ^^
fix: axis names are letters a-z, digits and _, and start with a letter""",
    ),
    "accent on its own": (
        "n [c\u0301 h]",
        "n [c h]",
        """\
unexpected '\u0301' in a scope
    n [c\ufffd h]
        ^
fix: axis names are letters a-z, digits and _, and start with a letter""",
    ),
    "invisible character": (
        "n\u200b [c]",
        "n [c]",
        """\
unexpected '\\u200b' in a scope
    n\ufffd [c]
     ^
fix: axis names are letters a-z, digits and _, and start with a letter""",
    ),
    "terminal escape": (
        "n [c]\x1b[31m",
        "n [c][d]",
        """\
unexpected '\\x1b' in a scope
    n [c]\ufffd[31m
         ^
fix: axis names are letters a-z, digits and _, and start with a letter""",
    ),
}


@pytest.mark.parametrize(("faulty", "valid", "message"), FAULTS.values(), ids=FAULTS.keys())
def test_errors_next_to_valid_scopes(faulty: str, valid: str, message: str) -> None:
    with pytest.raises(ScopeError) as caught:
        Scope.parse(faulty)
    assert str(caught.value) == message
    assert str(Scope.parse(valid)) == valid


def test_a_long_scope_is_shown_around_the_error() -> None:
    names = " ".join(f"a{i}" for i in range(50))
    with pytest.raises(ScopeError) as caught:
        parse(f"{names} , {names}")
    assert str(caught.value) == (
        "unexpected ',' in a scope\n"
        "    … a44 a45 a46 a47 a48 a49 , a0 a1 a2 a3 a4 a5 a6 a7 a8 a9 a10 a11 a12 a13 …\n"
        "                              ^\n"
        "fix: separate axes by spaces"
    )


@pytest.mark.parametrize("count", chiefly([20_000], [100_000]))
def test_very_many_axes(count: int) -> None:
    text = " ".join(f"a{i}" for i in range(count))
    assert len(parse(text)) == count
    with pytest.raises(ScopeError) as caught:
        Scope.parse(text)
    assert max(map(len, str(caught.value).splitlines())) < 90
