"""Scopes that do not fit a shape, next to sizes that do, with their messages."""

from typing import Any

import pytest

from normscope.errors import ScopeError
from normscope.scope import Scope

# A scope, a shape and sizes that do not fit; a shape and sizes that do; and the whole message.
MISFITS: dict[str, tuple[str, tuple[Any, ...], dict[str, Any], tuple[int, ...], dict[str, int], str]] = {
    "unknown axis": (
        *("n [c]", (2, 3), {"k": 3}, (2, 3), {"c": 3}),
        """\
a size was given for axis 'k', which the scope does not have
    n [c]
    ^^^^^
given: k=3
fix: its axes are: n c""",
    ),
    "size for a scope without names": (
        *("[...]", (2, 3), {"k": 3}, (2, 3), {}),
        """\
a size was given for axis 'k', which the scope does not have
    [...]
    ^^^^^
given: k=3
fix: remove it: '...' has no size""",
    ),
    "size zero": (
        *("n (g [c])", (2, 6), {"g": 0}, (2, 6), {"g": 1}),
        """\
the size of axis 'g' must be a positive integer
    n (g [c])
       ^
given: g=0
fix: for instance g=8""",
    ),
    "size below zero": (
        *("n (g [c])", (2, 6), {"c": -1}, (2, 6), {"c": 1}),
        """\
the size of axis 'c' must be a positive integer
    n (g [c])
          ^
given: c=-1
fix: for instance c=8""",
    ),
    "size that is a bool": (
        *("n (g [c])", (2, 6), {"g": True}, (2, 6), {"g": 1}),
        """\
the size of axis 'g' must be a positive integer
    n (g [c])
       ^
given: g=True
fix: for instance g=8""",
    ),
    "size with a fraction": (
        *("n (g [c])", (2, 6), {"g": 2.5}, (2, 6), {"g": 2}),
        """\
the size of axis 'g' must be a positive integer
    n (g [c])
       ^
given: g=2.5
fix: for instance g=8""",
    ),
    "too few dimensions": (
        *("n [c h w]", (2, 3, 4), {}, (2, 3, 4, 4), {}),
        """\
the scope names 4 dimensions, but the tensor has 3
    n [c h w]
    ^^^^^^^^^
given: shape (2, 3, 4)
fix: name one axis for each dimension of the tensor, or write '...' for any number of them""",
    ),
    "too many dimensions": (
        *("[d]", (2, 3), {}, (3,), {}),
        """\
the scope names 1 dimension, but the tensor has 2
    [d]
    ^^^
given: shape (2, 3)
fix: name one axis for each dimension of the tensor, or write '...' for any number of them""",
    ),
    "too few dimensions for a rest": (
        *("n (g [c]) [...]", (2,), {"g": 2}, (2, 4), {"g": 2}),
        """\
the scope names at least 2 dimensions, but the tensor has 1
    n (g [c]) [...]
    ^^^^^^^^^^^^^^^
given: shape (2,), g=2
fix: give a tensor with at least 2 dimensions, or name fewer axes""",
    ),
    "another size in the tensor": (
        *("n [chan]", (2, 3), {"chan": 4}, (2, 4), {"chan": 4}),
        """\
axis 'chan' has size 3 in the tensor, but chan=4 was given
    n [chan]
       ^^^^
given: shape (2, 3), chan=4
fix: give a tensor with 4 there, or chan=3""",
    ),
    "size zero in the tensor": (
        *("n [c]", (2, 0), {"c": 4}, (2, 0), {}),
        """\
axis 'c' has size 0 in the tensor, but c=4 was given
    n [c]
       ^
given: shape (2, 0), c=4
fix: give a tensor with 4 there""",
    ),
    "indivisible": (
        *("n (g [c]) [...]", (2, 6, 5), {"g": 4}, (2, 6, 5), {"g": 3}),
        """\
an axis of size 6 cannot be divided by g=4
    n (g [c]) [...]
      ^^^^^^^
given: shape (2, 6, 5), g=4
fix: use a divisor of 6: 1, 2, 3, 6""",
    ),
    "indivisible by a product": (
        *("n (a b [c])", (2, 12), {"a": 2, "b": 4}, (2, 12), {"a": 2, "b": 3}),
        """\
an axis of size 12 cannot be divided by a=2 x b=4
    n (a b [c])
      ^^^^^^^^^
given: shape (2, 12), a=2, b=4
fix: use sizes that make a divisor of 12: 1, 2, 3, 4, 6, 12""",
    ),
    "many divisors": (
        *("(g [c])", (720,), {"g": 7}, (720,), {"g": 8}),
        """\
an axis of size 720 cannot be divided by g=7
    (g [c])
    ^^^^^^^
given: shape (720,), g=7
fix: use a divisor of 720: 1, 2, 3, 4, 5, 6, 8, 9, 10, 12, 15, ..., 720""",
    ),
    "a size too large to look at every divisor": (
        *("(g [c])", (10**18,), {"g": 7}, (10**18,), {"g": 10}),
        """\
an axis of size 1000000000000000000 cannot be divided by g=7
    (g [c])
    ^^^^^^^
given: shape (1000000000000000000,), g=7
fix: use a divisor of 1000000000000000000: 1, 2, 4, 5, 8, 10, 16, 20, 25, 32, 40, ..., 1000000000000000000""",
    ),
    "two unknown sizes": (
        *("n (g [c])", (2, 6), {}, (2, 6), {"g": 2}),
        """\
the sizes of 'g' and 'c' cannot all be inferred
    n (g [c])
      ^^^^^^^
given: shape (2, 6)
fix: give all but one, for instance g=2""",
    ),
    "three unknown sizes": (
        *("n (a b [c])", (2, 8), {"n": 2}, (2, 8), {"n": 2, "a": 2, "b": 2}),
        """\
the sizes of 'a' and 'b' and 'c' cannot all be inferred
    n (a b [c])
      ^^^^^^^^^
given: shape (2, 8), n=2
fix: give all but one, for instance a=2, b=2""",
    ),
    "wrong product": (
        *("n (g [c])", (2, 6), {"g": 2, "c": 4}, (2, 8), {"g": 2, "c": 4}),
        """\
g=2 x c=4 makes 8, but the tensor has 6 there
    n (g [c])
      ^^^^^^^
given: shape (2, 6), g=2, c=4
fix: give a tensor with 8 there, or sizes that make 6""",
    ),
    "rest that stands for nothing": (
        *("n c [...]", (2, 3), {}, (2, 3, 4), {}),
        """\
the scope is empty: its brackets contain only '...', which matches no axis of this tensor
    n c [...]
         ^^^
given: shape (2, 3)
fix: give a tensor with at least one more dimension""",
    ),
    "shape below zero": (
        *("n [c]", (2, -1), {}, (2, 0), {}),
        """\
every size in a shape must be a non-negative integer
    n [c]
    ^^^^^
given: shape (2, -1)
fix: give the sizes that the tensor has, for instance x.shape""",
    ),
    "shape with a fraction": (
        *("n [c]", (2, 1.5), {}, (2, 1), {}),
        """\
every size in a shape must be a non-negative integer
    n [c]
    ^^^^^
given: shape (2, 1.5)
fix: give the sizes that the tensor has, for instance x.shape""",
    ),
}


@pytest.mark.parametrize(
    ("scope", "shape", "sizes", "right_shape", "right_sizes", "message"), MISFITS.values(), ids=MISFITS.keys()
)
def test_scopes_that_do_not_fit_next_to_scopes_that_do(
    scope: str,
    shape: tuple[Any, ...],
    sizes: dict[str, Any],
    right_shape: tuple[int, ...],
    right_sizes: dict[str, int],
    message: str,
) -> None:
    parsed = Scope.parse(scope)
    with pytest.raises(ScopeError) as caught:
        parsed.bind(shape, **sizes)
    assert str(caught.value) == message
    assert parsed.bind(right_shape, **right_sizes).shape == right_shape
