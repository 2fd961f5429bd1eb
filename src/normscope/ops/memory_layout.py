"""What a norm's scope means for memory: which numbers that share a statistic lie one after the other.

The dimensions are taken in the order of memory, each with a letter, and neighbours with the same letter are one:
k (kept: it has statistics of its own) and r (reduced), in capitals where a gain lies along it. So a LayerNorm is "kR",
a BatchNorm of images "rKr", and channels-last "rK"; a GroupNorm is "kKRr".
"""

from collections.abc import Callable, Sequence
from functools import lru_cache, wraps
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from normscope.ops.symbolic_sizes import is_known
from normscope.scope import Plan

R = TypeVar("R")

_COLUMNS = ("rK", "rR", "rKR", "krK", "krR", "krKR")
_SEGMENTS = tuple(samples + channels + places for samples in ("", "k", "r") for channels in ("K", "R", "KR")
                  for places in ("", "r"))  # fmt: skip


class ChannelLayout(NamedTuple):
    """Numbers as samples (`outer`), channels, and the places inside of a channel (`inner`).

    "segments": a channel's places lie together. "columns": the channels of a place do.
    """

    kind: Literal["segments", "columns"]
    outer: int
    channels: int
    inner: int
    together: int
    """How many neighbouring channels share a statistic."""
    shared: bool
    """Whether all samples share it."""

    def numbers(self) -> list[int]:
        """As plain numbers, which is all that an operator takes."""
        shared = 1 if self.shared else 0
        return [1 if self.kind == "segments" else 0, self.outer, self.channels, self.inner, self.together, shared]

    @classmethod
    def from_numbers(cls, numbers: Sequence[int]) -> "ChannelLayout":
        kind, outer, channels, inner, together, shared = numbers
        return cls("segments" if kind else "columns", outer, channels, inner, together, bool(shared))

    @property
    def members(self) -> int:
        """How many segments share a statistic."""
        return self.together * (self.outer if self.shared else 1)

    @property
    def groups(self) -> int:
        """How many statistics there are."""
        return self.channels // self.together * (1 if self.shared else self.outer)


def memory_order(x: Tensor, plan: Plan) -> tuple[int, ...] | None:
    """The plan's dimensions in the order of memory; None if the numbers do not lie densely in an order known here."""
    rank = len(plan.split_shape)
    if x.is_contiguous():
        return tuple(range(rank))
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
    if last is None or not x.is_contiguous(memory_format=last):
        return None
    extra = rank - x.dim()  # the channels may be split into groups
    return 0, *range(2 + extra, rank), *range(1, 2 + extra)


def remembered(function: Callable[..., R]) -> Callable[..., R]:
    """Remember what a function gave for earlier shapes; not while torch.compile looks, which warns of such a memory."""
    known = lru_cache(maxsize=4096)(function)

    @wraps(function)
    def recall(*args: Any) -> R:
        if torch.compiler.is_compiling():
            return function(*args)
        try:
            return known(*args)
        except TypeError:  # a traced model's sizes are symbols, which have no hash
            return function(*args)

    return recall


@remembered
def is_row_norm(sizes: tuple[int, ...], roles: str, along: tuple[int, ...]) -> bool:
    """Whether, in contiguous memory, each statistic is over one row, with a gain along all of it or none."""
    letters = _runs(sizes, roles, along, tuple(range(len(sizes)))).letters
    # A gain of one number has no letter: it lies along the row only where the row is one number too.
    return letters in (("", "k", "R", "kR") if len(along) else ("", "k", "r", "kr"))


@remembered
def channel_layout(
    sizes: tuple[int, ...], roles: str, along: tuple[int, ...], order: tuple[int, ...]
) -> ChannelLayout | None:
    """The tensor as samples, channels and places; None if it is not of that kind.

    >>> channel_layout((32, 64, 56, 56), "rkrr", (1, 64, 1, 1), (0, 1, 2, 3))  # BatchNorm
    ChannelLayout(kind='segments', outer=32, channels=64, inner=3136, together=1, shared=True)
    >>> channel_layout((8, 32, 2, 28, 28), "kkrrr", (1, 32, 2, 1, 1), (0, 1, 2, 3, 4)).together  # GroupNorm
    2
    """
    gain = [i for i in order if len(along) and not is_known(along[i] == 1)]
    if gain != sorted(gain):  # the gain would have to be read in another order than the input
        return None
    letters, counts, _ = _runs(sizes, roles, along, order)
    size = dict(zip(letters, counts, strict=True))
    channels, together = size.get("K", 1) * size.get("R", 1), size.get("R", 1)
    if letters in ("r", "kr"):
        return ChannelLayout("segments", size.get("k", 1), 1, size["r"], 1, shared=False)
    if letters in _COLUMNS:
        return ChannelLayout("columns", size.get("k", 1), channels, size["r"], together, shared=False)
    if letters in _SEGMENTS:
        outer = counts[0] if letters[0] in "kr" else 1
        inner = counts[-1] if letters[-1] == "r" else 1
        return ChannelLayout("segments", outer, channels, inner, together, shared=letters[0] == "r")
    return None


def channel_dimensions(sizes: tuple[int, ...], roles: str, along: tuple[int, ...], order: tuple[int, ...]) -> list[int]:
    """Those of the dimensions that are channels."""
    letters, _, dims = _runs(sizes, roles, along, order)
    return [i for letter, run in zip(letters, dims, strict=True) for i in run if letter in "KR"]


class _Runs(NamedTuple):
    """Neighbouring dimensions of one letter, taken together."""

    letters: str
    counts: list[int]
    """How many numbers there are along each."""
    dims: list[list[int]]


def _runs(sizes: tuple[int, ...], roles: str, along: tuple[int, ...], order: tuple[int, ...]) -> _Runs:
    """The letters of the file's head. Of the sizes nothing is asked but which are 1, and so of no account.

    What a dimension does comes as text: in a list of numbers torch.compile may not find a number that is there.
    """
    letters = ""
    counts: list[int] = []
    dims: list[list[int]] = []
    for i in order:
        if is_known(sizes[i] == 1):
            continue
        letter = roles[i]
        if len(along) and not is_known(along[i] == 1):
            letter = letter.upper()
        if letters.endswith(letter):
            counts[-1] = counts[-1] * sizes[i]  # not *=: torch.jit.trace has sizes that are tensors
            dims[-1].append(i)
        else:
            letters += letter
            counts.append(sizes[i])
            dims.append([i])
    if len(along) == 0:  # nothing has a gain: what is kept behind the first dimension is taken for the channels
        letters = letters[:1] + letters[1:].replace("k", "K")
    return _Runs(letters, counts, dims)
