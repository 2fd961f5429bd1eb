"""Parsed scopes: positions in the text, whitespace, immutability."""

import copy
import pickle
import re
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from normscope.errors import ArgumentTypeError, ScopeError, ShapeError
from normscope.scope import Scope
from normscope.scope.grammar import Axis, SplitDimension, parse


def test_axes_keep_their_positions_in_the_text() -> None:
    text = "batch (g [c]) [...]"
    dims = parse(text)
    assert dims == (
        Axis("batch", bracketed=False, span=(0, 5)),
        SplitDimension(
            (Axis("g", bracketed=False, span=(7, 8)), Axis("c", bracketed=True, span=(10, 11))), span=(6, 13)
        ),
        Axis("...", bracketed=True, span=(15, 18)),
    )


@pytest.mark.parametrize("text", ["n[c]h", "n [c]h", " n  [ c ]  h ", "n\t[c]\r\nh", "n\u00a0[c]\u3000h"])
def test_blanks_only_separate(text: str) -> None:
    axes = Scope.parse(text).axes
    assert [(axis.name, axis.bracketed) for axis in axes] == [("n", False), ("c", True), ("h", False)]
    assert [text[slice(*axis.span)] for axis in axes] == ["n", "c", "h"]


def test_brackets_may_hold_a_whole_split() -> None:
    (split,) = parse("[(g c)]")
    assert isinstance(split, SplitDimension)
    assert [axis.bracketed for axis in split.axes] == [True, True]


def test_scopes_are_frozen_and_hashable() -> None:
    scope = Scope.parse("n [c]")
    assert {scope: 1}[Scope.parse("n [c]")] == 1
    assert scope != Scope.parse("n [d]")
    assert Scope.parse(scope) is scope
    with pytest.raises(FrozenInstanceError):
        scope.text = "n c"  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        scope.axes[0].name = "m"  # type: ignore[misc]


def test_errors_survive_pickle_and_copy() -> None:
    with pytest.raises(ScopeError) as caught:
        Scope.parse("n [c] ").bind((2, 3), c=4)
    error = caught.value
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):  # noqa: S301 - our own bytes
        assert type(other) is ScopeError
        assert str(other) == str(error)
        assert (other.span, other.fix, other.given) == (error.span, error.fix, error.given)


def test_errors_are_value_errors() -> None:
    with pytest.raises(ValueError, match=re.escape("unmatched ']'")):
        Scope.parse("n c]")


def test_brackets_tells_whether_a_dimension_shares_statistics() -> None:
    scope = Scope.parse("[b ...] (g [c]) d")
    assert [scope.brackets(i, rank=5) for i in range(5)] == [True, True, True, True, False]
    assert [scope.brackets(i, rank=3) for i in range(3)] == [True, True, False]
    assert scope.brackets(-1, rank=4) is False


def test_brackets_refuses_a_rank_that_does_not_fit() -> None:
    with pytest.raises(ScopeError) as caught:
        Scope.parse("n [c] h").brackets(1, rank=2)
    assert (
        str(caught.value)
        == """\
the scope names 3 dimensions, but the tensor has 2
    n [c] h
    ^^^^^^^
given: shape (?, ?)
fix: name one axis for each dimension of the tensor, or write '...' for any number of them"""
    )


def test_sizes_of_a_shape_with_gaps() -> None:
    scope = Scope.parse("n (g [c]) [...] d")
    assert scope.sizes((None, 32, 7, 7, None), g=8) == {"g": 8, "c": 4}
    assert scope.sizes((None, None, 5), g=8) == {"g": 8, "d": 5}
    assert scope.sizes((2, None, None), c=4, d=3) == {"n": 2, "c": 4, "d": 3}


def test_an_axis_may_have_any_name() -> None:
    scope = Scope.parse("self [shape]")
    assert scope.bind((2, 3), self=2, shape=3).count == 3
    assert scope.sizes((None, 3), self=2) == {"self": 2, "shape": 3}
    scope.check_sizes(self=2, shape=3)


@pytest.mark.parametrize("shape", [3, "23", None, 2.5])
def test_invalid_shapes(shape: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="a shape must be a tuple of integers"):
        Scope.parse("n [c]").bind(shape)
    with pytest.raises(ArgumentTypeError, match="a shape must be a tuple of integers"):
        Scope.parse("n [c]").sizes(shape)


def test_a_tensor_instead_of_its_shape() -> None:
    class Tensor:
        shape = (2, 3)

    with pytest.raises(ArgumentTypeError, match=r"pass its shape, x\.shape"):
        Scope.parse("n [c]").bind(Tensor())  # type: ignore[arg-type]


def test_none_sizes_are_allowed_only_in_sizes() -> None:
    scope = Scope.parse("n [c]")
    assert scope.sizes((None, 3)) == {"c": 3}
    with pytest.raises(ArgumentTypeError, match="pass every size"):
        scope.bind((2, None))  # type: ignore[arg-type]


def test_a_float_is_refused_also_if_the_equal_int_is_cached() -> None:
    scope = Scope.parse("n [c]")
    scope.bind((2, 7))
    with pytest.raises(ScopeError):
        scope.bind((2, 7.0))  # type: ignore[arg-type]


def test_a_dimension_out_of_range() -> None:
    with pytest.raises(ShapeError, match="a tensor of 2 dimensions has no dimension 5"):
        Scope.parse("n [c]").brackets(5, rank=2)
