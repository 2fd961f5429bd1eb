"""Map a norm's scope to a memory layout that a fused kernel supports.

The dimensions, in memory order, are written as a pattern of letters: "k" for kept dimensions (each index has its own
statistics), "r" for reduced ones, uppercase where the weight varies along the dimension. Adjacent equal letters are
merged. LayerNorm is "kR", BatchNorm of images "rKr" or, channels-last, "rK"; GroupNorm is "kKRr".
"""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from normscope.ops.symbolic_sizes import statically_known_true
from normscope.scope import Plan

R = TypeVar("R")

_CHANNELS_LAST_PATTERNS = ("rK", "rR", "rKR", "krK", "krR", "krKR")
_CONTIGUOUS_PATTERNS = tuple(
    batch + channels + spatial for batch in ("", "k", "r") for channels in ("K", "R", "KR") for spatial in ("", "r")
)


class ChannelLayout(NamedTuple):
    """A tensor as (batch, channels, spatial), or (batch, spatial, channels) for channels_last.

    Args:
        memory_format: "contiguous" if the spatial positions of a channel are adjacent in memory, "channels_last" if
            the channels of a position are.
        batch, channels, spatial: the sizes.
        group_size: the number of adjacent channels that share statistics.
        across_batch: whether all samples of the batch share statistics.
    """

    memory_format: str
    batch: int
    channels: int
    spatial: int
    group_size: int
    across_batch: bool

    @property
    def planes_per_group(self) -> int:
        """The number of planes (the spatial positions of one channel of one sample) that share statistics."""
        return self.group_size * (self.batch if self.across_batch else 1)

    @property
    def groups(self) -> int:
        """The number of groups of values that share statistics."""
        return self.channels // self.group_size * (1 if self.across_batch else self.batch)


def memory_order(x: Tensor, plan: Plan) -> tuple[int, ...] | None:
    """Return the plan's dimensions in memory order, or None if x is neither contiguous nor channels-last."""
    rank = len(plan.split_shape)
    if x.is_contiguous():
        return tuple(range(rank))
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
    if last is None or not x.is_contiguous(memory_format=last):
        return None
    extra = rank - x.dim()  # the channels may be split into groups
    return 0, *range(2 + extra, rank), *range(1, 2 + extra)


def cached(function: Callable[..., R]) -> Callable[..., R]:
    """Cache results by shape, except under torch.compile, which warns about caches."""
    cache = lru_cache(maxsize=4096)(function)

    @wraps(function)
    def lookup(*args: Any) -> R:
        if torch.compiler.is_compiling():
            return function(*args)
        try:
            return cache(*args)
        except TypeError:  # symbolic sizes of a traced model are not hashable
            return function(*args)

    return lookup


@cached
def is_row_norm(sizes: tuple[int, ...], roles: str, affine_shape: tuple[int, ...]) -> bool:
    """Return whether, in contiguous memory, each statistic is over one row, with a weight along all of it or none."""
    pattern = _merge_dimensions(sizes, roles, affine_shape, tuple(range(len(sizes))))[0]
    # A weight of a single number has no letter: it fits only if the row is a single number too.
    return pattern in (("", "k", "R", "kR") if len(affine_shape) else ("", "k", "r", "kr"))


@cached
def channel_layout(
    sizes: tuple[int, ...], roles: str, affine_shape: tuple[int, ...], order: tuple[int, ...]
) -> ChannelLayout | None:
    """Return the layout as (batch, channels, spatial), or None if the norm does not have this form.

    >>> channel_layout((32, 64, 56, 56), "rkrr", (1, 64, 1, 1), (0, 1, 2, 3))  # BatchNorm
    ChannelLayout(memory_format='contiguous', batch=32, channels=64, spatial=3136, group_size=1, across_batch=True)
    >>> channel_layout((8, 32, 2, 28, 28), "kkrrr", (1, 32, 2, 1, 1), (0, 1, 2, 3, 4)).group_size  # GroupNorm
    2
    """
    affine_dims = [i for i in order if len(affine_shape) and not statically_known_true(affine_shape[i] == 1)]
    if affine_dims != sorted(affine_dims):  # the weight's memory order differs from the input's
        return None
    pattern, counts, _ = _merge_dimensions(sizes, roles, affine_shape, order)
    size = dict(zip(pattern, counts, strict=True))
    channels, group_size = size.get("K", 1) * size.get("R", 1), size.get("R", 1)
    if pattern in ("r", "kr"):
        return ChannelLayout("contiguous", size.get("k", 1), 1, size["r"], 1, across_batch=False)
    if pattern in _CHANNELS_LAST_PATTERNS:
        return ChannelLayout("channels_last", size.get("k", 1), channels, size["r"], group_size, across_batch=False)
    if pattern in _CONTIGUOUS_PATTERNS:
        batch = counts[0] if pattern[0] in "kr" else 1
        spatial = counts[-1] if pattern[-1] == "r" else 1
        return ChannelLayout("contiguous", batch, channels, spatial, group_size, across_batch=pattern[0] == "r")
    return None


def channel_dimensions(
    sizes: tuple[int, ...], roles: str, affine_shape: tuple[int, ...], order: tuple[int, ...]
) -> list[int]:
    """Return the dimensions that are channels."""
    pattern, _, dims = _merge_dimensions(sizes, roles, affine_shape, order)
    return [i for letter, run in zip(pattern, dims, strict=True) for i in run if letter in "KR"]


def _merge_dimensions(
    sizes: tuple[int, ...], roles: str, affine_shape: tuple[int, ...], order: tuple[int, ...]
) -> tuple[str, list[int], list[list[int]]]:
    """Compute the pattern described at the top of this file, and the size and dimensions of each of its letters.

    Dimensions of size 1 are dropped. Nothing else is asked about the sizes, so that a compiled graph holds for all of
    them. Roles are a string because torch.compile may miss an element of a list of ints.
    """
    pattern = ""
    counts: list[int] = []
    dims: list[list[int]] = []
    for i in order:
        if statically_known_true(sizes[i] == 1):
            continue
        letter = roles[i]
        if len(affine_shape) and not statically_known_true(affine_shape[i] == 1):
            letter = letter.upper()
        if pattern.endswith(letter):
            counts[-1] = counts[-1] * sizes[i]  # not *=: under torch.jit.trace sizes are tensors
            dims[-1].append(i)
        else:
            pattern += letter
            counts.append(sizes[i])
            dims.append([i])
    if len(affine_shape) == 0:  # no weight: kept dimensions after the first are the channels
        pattern = pattern[:1] + pattern[1:].replace("k", "K")
    return pattern, counts, dims
