"""Scopes as they lie in memory."""

import pytest
import torch

from normscope.ops.norm.memory_layout import (
    ChannelLayout,
    channel_dimensions,
    channel_layout,
    is_row_norm,
    memory_order,
)
from normscope.scope import Axes, Scope

IMAGE = (4, 6, 5, 7)


def plan_and_gain(
    scope: str, affine: str | None, shape: tuple[int, ...], **sizes: int
) -> tuple[tuple[int, ...], str, tuple[int, ...]]:
    plan = Scope.parse(scope).bind(shape, **sizes)
    return plan.split_shape, plan.roles, plan.broadcast_shape(Axes.parse(affine).names) if affine else ()


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
    assert is_row_norm(*plan_and_gain(scope, affine, shape)) is expected


@pytest.mark.parametrize(
    ("scope", "affine", "shape", "sizes", "expected"),
    [
        ("[n] c [h w]", "c", IMAGE, {}, ChannelLayout("contiguous", 4, 6, 35, 1, across_batch=True)),
        ("[n] c [h w]", None, IMAGE, {}, ChannelLayout("contiguous", 4, 6, 35, 1, across_batch=True)),
        ("n c [h w]", "c", IMAGE, {}, ChannelLayout("contiguous", 4, 6, 35, 1, across_batch=False)),
        ("n (g [c]) [h w]", "(g c)", IMAGE, {"g": 2}, ChannelLayout("contiguous", 4, 6, 35, 3, across_batch=False)),
        ("n [c h w]", "c", IMAGE, {}, ChannelLayout("contiguous", 4, 6, 35, 6, across_batch=False)),
        ("n c [h w]", None, IMAGE, {}, ChannelLayout("contiguous", 24, 1, 35, 1, across_batch=False)),
        ("[n] c", "c", (9, 6), {}, ChannelLayout("channels_last", 1, 6, 9, 1, across_batch=False)),
        ("[b s] d", "d", (2, 3, 8), {}, ChannelLayout("channels_last", 1, 8, 6, 1, across_batch=False)),
        ("n [s] c", "c", (2, 3, 8), {}, ChannelLayout("channels_last", 2, 8, 3, 1, across_batch=False)),
        ("n [s] (g [c])", "(g c)", (2, 3, 8), {"g": 4}, ChannelLayout("channels_last", 2, 8, 3, 2, across_batch=False)),
        ("[n] c [h] w", "c", IMAGE, {}, None),
        ("n [c] h w", "c", IMAGE, {}, None),
    ],
)
def test_channels(
    scope: str, affine: str | None, shape: tuple[int, ...], sizes: dict[str, int], expected: ChannelLayout | None
) -> None:
    split, roles, along = plan_and_gain(scope, affine, shape, **sizes)
    assert channel_layout(split, roles, along, tuple(range(len(split)))) == expected


def test_channels_last() -> None:
    x = torch.zeros(IMAGE).contiguous(memory_format=torch.channels_last)
    plan = Scope.parse("n (g [c]) [h w]").bind(IMAGE, g=2)
    order = memory_order(x, plan)
    assert order == (0, 3, 4, 1, 2)
    gain = plan.broadcast_shape(("g", "c"))
    found = channel_layout(plan.split_shape, plan.roles, gain, order)
    assert found == ChannelLayout("channels_last", 4, 6, 35, 3, across_batch=False)
    assert channel_dimensions(plan.split_shape, plan.roles, gain, order) == [1, 2]
    # A gain over c h w would have to be read in another order than the image lies in.
    assert channel_layout(IMAGE, "krrr", (1, *IMAGE[1:]), (0, 2, 3, 1)) is None


def test_what_does_not_lie_densely() -> None:
    plan = Scope.parse("n [s] c").bind((2, 3, 8))
    assert memory_order(torch.zeros(2, 3, 16)[..., ::2], plan) is None
    assert memory_order(torch.zeros(2, 3, 8), plan) == (0, 1, 2)


def test_groups_and_planes() -> None:
    at = ChannelLayout("channels_last", 2, 8, 3, 4, across_batch=False)
    assert (at.groups, at.planes_per_group) == (4, 4)
