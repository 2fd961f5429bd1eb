"""Binding a scope to a shape: plans of the named norms, and caching."""

from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from normscope.errors import ScopeError
from normscope.scope import Plan, Scope

LAYER_NORM = Plan(
    shape=(2, 5, 8),
    names=("...", "...", "d"),
    split_shape=(2, 5, 8),
    reduced=(2,),
    kept=(0, 1),
    count=8,
    statistics_shape=(2, 5),
    roles="kkr",
)
LAYER_NORM_OF_IMAGES = Plan(
    shape=(2, 6, 3, 4),
    names=("n", "c", "h", "w"),
    split_shape=(2, 6, 3, 4),
    reduced=(1, 2, 3),
    kept=(0,),
    count=72,
    statistics_shape=(2,),
    roles="krrr",
)
BATCH_NORM = Plan(
    shape=(2, 6, 3, 4),
    names=("n", "c", "...", "..."),
    split_shape=(2, 6, 3, 4),
    reduced=(0, 2, 3),
    kept=(1,),
    count=24,
    statistics_shape=(6,),
    roles="rkrr",
)
INSTANCE_NORM = Plan(
    shape=(2, 6, 3, 4),
    names=("n", "c", "...", "..."),
    split_shape=(2, 6, 3, 4),
    reduced=(2, 3),
    kept=(0, 1),
    count=12,
    statistics_shape=(2, 6),
    roles="kkrr",
)
GROUP_NORM = Plan(
    shape=(2, 6, 3, 4),
    names=("n", "g", "c", "...", "..."),
    split_shape=(2, 3, 2, 3, 4),
    reduced=(2, 3, 4),
    kept=(0, 1),
    count=24,
    statistics_shape=(2, 3),
    roles="kkrrr",
)


@pytest.mark.parametrize(
    ("scope", "sizes", "plan"),
    [
        ("... [d]", {}, LAYER_NORM),
        ("n [c h w]", {}, LAYER_NORM_OF_IMAGES),
        ("[n] c [...]", {}, BATCH_NORM),
        ("n c [...]", {}, INSTANCE_NORM),
        ("n (g [c]) [...]", {"g": 3}, GROUP_NORM),
        ("n (g [c]) [...]", {"c": 2}, GROUP_NORM),
        ("n (g [c]) [...]", {"g": 3, "c": 2, "n": 2}, GROUP_NORM),
    ],
)
def test_plans_of_the_named_norms(scope: str, sizes: dict[str, int], plan: Plan) -> None:
    assert Scope.parse(scope).bind(plan.shape, **sizes) == plan


def test_batch_norm_of_vectors_has_no_other_axes() -> None:
    plan = Scope.parse("[n] c [...]").bind((16, 6))
    assert (plan.reduced, plan.count, plan.statistics_shape) == ((0,), 16, (6,))


def test_broadcast_shape_of_a_gain() -> None:
    assert GROUP_NORM.broadcast_shape(["g", "c"]) == (1, 3, 2, 1, 1)
    assert GROUP_NORM.broadcast_shape([]) == (1, 1, 1, 1, 1)


@pytest.mark.parametrize(
    ("shape", "split_shape", "count", "statistics_shape"),
    [
        ((0, 6, 3), (0, 2, 3, 3), 9, (0, 2)),  # no images: no statistics
        ((4, 6, 0), (4, 2, 3, 0), 0, (4, 2)),  # no pixels: each statistic over nothing
        ((4, 0, 3), (4, 2, 0, 3), 0, (4, 2)),  # no channels: zero divides into groups of zero
    ],
)
def test_dimensions_of_size_zero(
    shape: tuple[int, ...], split_shape: tuple[int, ...], count: int, statistics_shape: tuple[int, ...]
) -> None:
    plan = Scope.parse("n (g [c]) [...]").bind(shape, g=2)
    assert (plan.split_shape, plan.count, plan.statistics_shape) == (split_shape, count, statistics_shape)


def test_plans_are_frozen_hashable_and_cached() -> None:
    scope = Scope.parse("n [c]")
    plan = scope.bind([2, 3])
    assert scope.bind((2, 3)) is plan
    assert {plan: 1}[plan] == 1
    with pytest.raises(FrozenInstanceError):
        plan.count = 7  # type: ignore[misc]


@pytest.mark.parametrize("wrong", [True, 1.0])
def test_a_cached_plan_does_not_accept_an_invalid_size(wrong: Any) -> None:
    scope = Scope.parse("n (g [c])")
    scope.bind((2, 3), g=1)
    with pytest.raises(ScopeError):  # equal to the size before, and yet no whole number
        scope.bind((2, 3), g=wrong)


def test_check_sizes_needs_no_shape() -> None:
    scope = Scope.parse("n (g [c])")
    scope.check_sizes(g=2)
    with pytest.raises(ScopeError, match="a size was given for axis 'k'"):
        scope.check_sizes(k=2)
