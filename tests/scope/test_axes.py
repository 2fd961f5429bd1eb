"""The axes of a gain: shapes, and every error message."""

from dataclasses import FrozenInstanceError

import pytest

from normscope.errors import ArgumentTypeError, ScopeError
from normscope.scope import Axes, Scope

GROUPS = Scope.parse("n (g [c]) h [...]")


@pytest.mark.parametrize(
    ("text", "shape"), [("c", (4,)), ("g c", (2, 4)), ("(g c)", (8,)), ("(g c) h", (8, 5)), ("g", (2,))]
)
def test_shape_of_the_gain(text: str, shape: tuple[int, ...]) -> None:
    assert Axes.parse(text).shape(GROUPS, {"g": 2, "c": 4, "h": 5}) == shape


def test_axes_know_their_names_and_text() -> None:
    axes = Axes.parse("(g c) h")
    assert axes.names == ("g", "c", "h")
    assert str(axes) == "(g c) h"


def test_axes_are_frozen_and_hashable() -> None:
    axes = Axes.parse("c")
    assert {axes: 1}[Axes.parse("c")] == 1
    assert axes != Axes.parse("d")
    with pytest.raises(FrozenInstanceError):
        axes.text = "d"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("faulty", "valid", "message"),
    [
        (
            "c [h]",
            "c h",
            """\
brackets are not allowed here
    c [h]
       ^
fix: name the axes of the weight without brackets, for example affine='c'""",
        ),
        (
            "c ...",
            "c h",
            """\
'...' has no fixed size
    c ...
      ^^^
fix: name the axes of the weight, for example affine='c'""",
        ),
        (
            "",
            "c",
            """\
no axis is named
fix: name the axes of the weight, or pass affine=None for no weight""",
        ),
        (
            "(g c",
            "(g c)",
            """\
unclosed '('
    (g c
    ^
fix: add the matching ')'""",
        ),
    ],
)
def test_invalid_axes_next_to_valid_ones(faulty: str, valid: str, message: str) -> None:
    with pytest.raises(ScopeError) as caught:
        Axes.parse(faulty)
    assert str(caught.value) == message
    assert Axes.parse(valid).text == valid


@pytest.mark.parametrize(
    ("misfit", "valid", "message"),
    [
        (
            "c d",
            "c h",
            """\
axis 'd' is not in the scope 'n (g [c]) h [...]'
    c d
      ^
fix: use one of: n g c h""",
        ),
        (
            "h (g c)",
            "(g c) h",
            """\
axis 'g' comes earlier in the scope 'n (g [c]) h [...]'
    h (g c)
       ^
fix: keep the scope's order: g c h""",
        ),
        (
            "n c",
            "g c",
            """\
axis 'n' has no known size in the scope 'n (g [c]) h [...]'
    n c
    ^
fix: give it: n=...""",
        ),
    ],
)
def test_axes_that_do_not_fit_next_to_axes_that_do(misfit: str, valid: str, message: str) -> None:
    sizes = {"g": 2, "c": 4, "h": 5}
    with pytest.raises(ScopeError) as caught:
        Axes.parse(misfit).shape(GROUPS, sizes)
    assert str(caught.value) == message
    assert Axes.parse(valid).shape(GROUPS, sizes)


def test_not_a_string() -> None:
    with pytest.raises(ArgumentTypeError) as caught:
        Axes.parse(3)  # type: ignore[arg-type]
    assert str(caught.value) == "a scope is text such as 'n [c h w]', but got int: 3"
