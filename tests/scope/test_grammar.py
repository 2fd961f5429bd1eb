"""Parsing: each error next to a valid scope, with its message."""

import pytest

from normscope.errors import ArgumentTypeError, ScopeError
from normscope.scope import Scope
from normscope.scope.grammar import parse

# The faulty text, the nearest text that is right, and the whole message of the faulty one.
FAULTS = {
    "unclosed bracket": (
        "n [c h",
        "n [c h]",
        """\
unclosed '['
    n [c h
      ^
fix: add the matching ']'""",
    ),
    "unclosed split": (
        "n (g [c] h",
        "n (g [c]) h",
        """\
unclosed '('
    n (g [c] h
      ^
fix: add the matching ')'""",
    ),
    "bracket before the unclosed split": (
        "[n] (g c",
        "[n] (g c)",
        """\
unclosed '('
    [n] (g c
        ^
fix: add the matching ')'""",
    ),
    "stray closing bracket": (
        "n c] h",
        "n [c] h",
        """\
unmatched ']'
    n c] h
       ^
fix: add the matching '[', or remove it""",
    ),
    "stray closing parenthesis": (
        "n [c]) h",
        "n ([c]) h",
        """\
unmatched ')'
    n [c]) h
         ^
fix: add the matching '(', or remove it""",
    ),
    "nested brackets": (
        "n [c [h]]",
        "n [c] [h]",
        """\
brackets cannot be nested
    n [c [h]]
         ^
fix: close the first '[' before this one, or leave this one out""",
    ),
    "nested brackets through a split": (
        "[n (g [c])]",
        "[n] (g [c])",
        """\
brackets cannot be nested
    [n (g [c])]
          ^
fix: close the first '[' before this one, or leave this one out""",
    ),
    "nested split": (
        "n (a (b [c]))",
        "n (a b [c])",
        """\
a split cannot be split again
    n (a (b [c]))
         ^
fix: list all the parts in one pair, for instance (a b [c])""",
    ),
    "bracket closed outside its split": (
        "n (g [c)] h",
        "n (g [c]) h",
        """\
brackets and parentheses cross
    n (g [c)] h
           ^
fix: close the innermost bracket first, for example (g [c])""",
    ),
    "split closed outside its bracket": (
        "n [(g c] h)",
        "n [(g c)] h",
        """\
brackets and parentheses cross
    n [(g c] h)
           ^
fix: close the innermost bracket first, for example (g [c])""",
    ),
    "empty brackets": (
        "n [ ] c",
        "n [c]",
        """\
the brackets are empty
    n [ ] c
      ^^^
fix: name the axes that share statistics in them""",
    ),
    "empty split": (
        "n [c] ()",
        "n [c] (g)",
        """\
the split is empty
    n [c] ()
          ^^
fix: name its parts, for instance (g [c])""",
    ),
    "rest in a split": (
        "n (g [...])",
        "n (g [c]) ...",
        """\
'...' cannot be a part of a split axis
    n (g [...])
          ^^^
fix: name the parts, for instance (g [c])""",
    ),
    "repeated axis": (
        "batch [chan] chan",
        "batch [chan] height",
        """\
duplicate axis 'chan'
    batch [chan] chan
                 ^^^^
fix: use a different name for each axis""",
    ),
    "repeated axis in one split": (
        "n ([c] c)",
        "n ([c] d)",
        """\
duplicate axis 'c'
    n ([c] c)
           ^
fix: use a different name for each axis""",
    ),
    "repeated rest": (
        "... c [...]",
        "n c [...]",
        """\
duplicate axis '...'
    ... c [...]
           ^^^
fix: write '...' once""",
    ),
    "comma": (
        "n, [c]",
        "n [c]",
        """\
unexpected ',' in a scope
    n, [c]
     ^
fix: separate axes by spaces""",
    ),
    "two dots": (
        ".. [d]",
        "... [d]",
        """\
unexpected '.' in a scope
    .. [d]
    ^
fix: three dots, '...', stand for any number of axes""",
    ),
    "four dots": (
        ".... [d]",
        "... [d]",
        """\
unexpected '.' in a scope
    .... [d]
       ^
fix: three dots, '...', stand for any number of axes""",
    ),
    "ellipsis character": (
        "… [d]",
        "... [d]",
        """\
unexpected '…' in a scope
    … [d]
    ^
fix: write three dots, '...', for any number of axes""",
    ),
    "opening brace": (
        "n {c}",
        "n [c]",
        """\
unexpected '{' in a scope
    n {c}
      ^
fix: use [ ] for the axes that share statistics and ( ) to split an axis""",
    ),
    "closing brace": (
        "n [c}",
        "n [c]",
        """\
unexpected '}' in a scope
    n [c}
        ^
fix: use [ ] for the axes that share statistics and ( ) to split an axis""",
    ),
    "a size as an axis": (
        "n (16 [c])",
        "n (g16 [c])",
        """\
unexpected '16' in a scope
    n (16 [c])
       ^^
fix: give the axis a name, and its size beside the scope, for instance '(g [c])' with g=8""",
    ),
    "minus": (
        "n [c-1]",
        "n [c_1]",
        """\
unexpected '-' in a scope
    n [c-1]
        ^
fix: axis names are letters a-z, digits and _, and start with a letter""",
    ),
    "underscore first": (
        "n [_c]",
        "n [c_]",
        """\
unexpected '_' in a scope
    n [_c]
       ^
fix: axis names are letters a-z, digits and _, and start with a letter""",
    ),
    "no brackets": (
        "  n c h w  ",
        "  n [c h w]  ",
        """\
the scope is empty: no axis is in brackets, so no two values would share a statistic
      n c h w
      ^^^^^^^
fix: bracket the axes that share statistics, for instance 'n [c h w]'""",
    ),
    "nothing": (
        "",
        "[d]",
        """\
the scope is empty: no axis is in brackets, so no two values would share a statistic
fix: bracket the axes that share statistics, for instance 'n [c h w]'""",
    ),
    "only blanks": (
        " \t\n ",
        "\t[d]\n",
        """\
the scope is empty: no axis is in brackets, so no two values would share a statistic
fix: bracket the axes that share statistics, for instance 'n [c h w]'""",
    ),
}


@pytest.mark.parametrize(("faulty", "valid", "message"), FAULTS.values(), ids=FAULTS.keys())
def test_errors_next_to_valid_scopes(faulty: str, valid: str, message: str) -> None:
    with pytest.raises(ScopeError) as caught:
        Scope.parse(faulty)
    assert str(caught.value) == message
    assert str(Scope.parse(valid)) == valid


def test_not_a_string() -> None:
    with pytest.raises(ArgumentTypeError) as caught:
        parse(("n", "c"))  # type: ignore[arg-type]
    assert str(caught.value) == "a scope is text such as 'n [c h w]', but got tuple: ('n', 'c')"


def test_not_a_string_and_very_long() -> None:
    with pytest.raises(ArgumentTypeError) as caught:
        parse(list(range(10_000)))  # type: ignore[arg-type]
    assert str(caught.value) == "a scope is text such as 'n [c h w]', but got list: [0, 1, 2, 3, 4, 5, ...]"
