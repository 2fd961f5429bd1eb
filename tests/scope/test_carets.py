"""Carets line up under the error, whatever characters the text has.

Any whitespace takes one column, an East Asian character two, and unprintable characters are replaced.
"""

import pytest

from normscope.errors import ScopeError
from normscope.scope import Scope
from normscope.scope.grammar import parse

# Invalid text, the nearest valid text, and the full error message.
FAULTS = {
    "tab and line break before the fault": (
        "n\t[c\n h",
        "n\t[c\n h]",
        """\
'[' is never closed
    n [c  h
      ^
fix: add the ']' that belongs to it""",
    ),
    "wide character": (
        "n [c 高]",
        "n [c h]",
        """\
'高' does not belong in a scope
    n [c 高]
         ^^
fix: axis names are letters a-z, digits and _, and start with a letter""",
    ),
    "accent on its own": (
        "n [c\u0301 h]",
        "n [c h]",
        """\
'\u0301' does not belong in a scope
    n [c\ufffd h]
        ^
fix: axis names are letters a-z, digits and _, and start with a letter""",
    ),
    "invisible character": (
        "n\u200b [c]",
        "n [c]",
        """\
'\\u200b' does not belong in a scope
    n\ufffd [c]
     ^
fix: axis names are letters a-z, digits and _, and start with a letter""",
    ),
    "terminal escape": (
        "n [c]\x1b[31m",
        "n [c][d]",
        """\
'\\x1b' does not belong in a scope
    n [c]\ufffd[31m
         ^
fix: axis names are letters a-z, digits and _, and start with a letter""",
    ),
}


@pytest.mark.parametrize(("faulty", "valid", "message"), FAULTS.values(), ids=FAULTS.keys())
def test_invalid_and_similar_valid_text(faulty: str, valid: str, message: str) -> None:
    with pytest.raises(ScopeError) as caught:
        Scope.parse(faulty)
    assert str(caught.value) == message
    assert str(Scope.parse(valid)) == valid


def test_long_text_is_truncated_around_the_error() -> None:
    names = " ".join(f"a{i}" for i in range(50))
    with pytest.raises(ScopeError) as caught:
        parse(f"{names} , {names}")
    assert str(caught.value) == (
        "',' does not belong in a scope\n"
        "    … a44 a45 a46 a47 a48 a49 , a0 a1 a2 a3 a4 a5 a6 a7 a8 a9 a10 a11 a12 a13 …\n"
        "                              ^\n"
        "fix: separate axes by spaces"
    )


def test_hundred_thousand_axes() -> None:
    text = " ".join(f"a{i}" for i in range(100_000))
    assert len(parse(text)) == 100_000
    with pytest.raises(ScopeError) as caught:
        Scope.parse(text)
    assert max(map(len, str(caught.value).splitlines())) < 90
