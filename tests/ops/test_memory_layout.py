"""Scopes as they lie in memory."""

import pytest
import torch

from normscope.ops.memory_layout import Channels, channel_dimensions, channels_of, in_memory, is_over_rows
from normscope.scope import Axes, Scope

IMAGE = (4, 6, 5, 7)


def plan_and_gain(
    scope: str, affine: str | None, shape: tuple[int, ...], **sizes: int
) -> tuple[tuple[int, ...], str, tuple[int, ...]]:
    plan = Scope.parse(scope).bind(shape, **sizes)
    return plan.split_shape, plan.roles, plan.along(Axes.parse(affine).names) if affine else ()


@pytest.mark.parametrize(
    ("scope", "affine", "shape", "expected"),
    [
        ("... [d]", "d", (2, 3, 8), True),
        ("... [d]", None, (2, 3, 8), True),
        ("n [c h w]", "c h w", IMAGE, True),
        ("n c [h w]", None, IMAGE, True),
        ("[d]", "d", (8,), True),
        ("n c [h w]", "c", IMAGE, False),
        ("[b s] d", "d", (2, 3, 8), False),
        ("n [c h w]", "c", IMAGE, False),
        ("n [s] d", None, (2, 3, 8), False),
    ],
)
def test_what_is_over_rows(scope: str, affine: str | None, shape: tuple[int, ...], expected: bool) -> None:
    assert is_over_rows(*plan_and_gain(scope, affine, shape)) is expected


@pytest.mark.parametrize(
    ("scope", "affine", "shape", "sizes", "expected"),
    [
        ("[n] c [h w]", "c", IMAGE, {}, Channels("segments", 4, 6, 35, 1, shared=True)),
        ("[n] c [h w]", None, IMAGE, {}, Channels("segments", 4, 6, 35, 1, shared=True)),
        ("n c [h w]", "c", IMAGE, {}, Channels("segments", 4, 6, 35, 1, shared=False)),
        ("n (g [c]) [h w]", "(g c)", IMAGE, {"g": 2}, Channels("segments", 4, 6, 35, 3, shared=False)),
        ("n [c h w]", "c", IMAGE, {}, Channels("segments", 4, 6, 35, 6, shared=False)),
        ("n c [h w]", None, IMAGE, {}, Channels("segments", 24, 1, 35, 1, shared=False)),
        ("[n] c", "c", (9, 6), {}, Channels("columns", 1, 6, 9, 1, shared=False)),
        ("[b s] d", "d", (2, 3, 8), {}, Channels("columns", 1, 8, 6, 1, shared=False)),
        ("n [s] c", "c", (2, 3, 8), {}, Channels("columns", 2, 8, 3, 1, shared=False)),
        ("n [s] (g [c])", "(g c)", (2, 3, 8), {"g": 4}, Channels("columns", 2, 8, 3, 2, shared=False)),
        ("[n] c [h] w", "c", IMAGE, {}, None),
        ("n [c] h w", "c", IMAGE, {}, None),
    ],
)
def test_channels(
    scope: str, affine: str | None, shape: tuple[int, ...], sizes: dict[str, int], expected: Channels | None
) -> None:
    split, roles, along = plan_and_gain(scope, affine, shape, **sizes)
    assert channels_of(split, roles, along, tuple(range(len(split)))) == expected


def test_channels_last() -> None:
    x = torch.zeros(IMAGE).contiguous(memory_format=torch.channels_last)
    plan = Scope.parse("n (g [c]) [h w]").bind(IMAGE, g=2)
    order = in_memory(x, plan)
    assert order == (0, 3, 4, 1, 2)
    gain = plan.along(("g", "c"))
    found = channels_of(plan.split_shape, plan.roles, gain, order)
    assert found == Channels("columns", 4, 6, 35, 3, shared=False)
    assert channel_dimensions(plan.split_shape, plan.roles, gain, order) == [1, 2]
    # A gain over c h w would have to be read in another order than the image lies in.
    assert channels_of(IMAGE, "krrr", (1, *IMAGE[1:]), (0, 2, 3, 1)) is None


def test_what_does_not_lie_densely() -> None:
    plan = Scope.parse("n [s] c").bind((2, 3, 8))
    assert in_memory(torch.zeros(2, 3, 16)[..., ::2], plan) is None
    assert in_memory(torch.zeros(2, 3, 8), plan) == (0, 1, 2)


def test_numbers_and_back() -> None:
    at = Channels("columns", 2, 8, 3, 4, shared=False)
    assert Channels.from_numbers(at.numbers()) == at
    assert (at.groups, at.members) == (4, 4)
