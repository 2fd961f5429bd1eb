"""Tokens to batches: for training in a new order each epoch, for validation all of them once."""

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from normscope.checks import check_positive_int, check_seed, is_integer
from normscope.data.shuffle import hash_key, permute, splitmix64
from normscope.data.token_file import TokenFile
from normscope.errors import ConfigError, CorpusError, DtypeError

TokenArray = NDArray[np.integer]
Pair = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Inputs and targets: each target is the token after its input."""


class Batches:
    """The batches of a training run, each a formula of the seed and its number: a run goes on from any step.

    An epoch cuts the tokens into adjacent windows of `context` tokens and takes each once, in random order. Each epoch
    cuts at another offset, and `context` epochs together use every offset once. Such a cycle takes every position
    that a window can start at exactly once, so no part of a short text is seen more often than another. A batch may
    begin in one epoch and end in the next.

    Args:
        tokens: a file of tokens, or an array.
        context: how many tokens a window has.
        batch: how many windows a batch has.
        seed: of the order.

    >>> batches = Batches(np.arange(1000), context=8, batch=4, seed=0)
    >>> inputs, targets = batches.batch(123)
    >>> inputs.shape, np.array_equal(targets, inputs + 1)
    ((4, 8), True)
    >>> batches.starts, batches.epoch(62)  # 124 windows an epoch
    (992, 2.0)
    """

    def __init__(self, tokens: TokenFile | TokenArray, context: int, batch: int, seed: int = 0) -> None:
        check_positive_int(context=context, batch=batch)
        check_seed(seed=seed)
        _check_tokens(tokens)
        if len(tokens) < context + 1:
            raise CorpusError(
                f"the training text has {len(tokens)} tokens, but a window of context={context} needs {context + 1}\n"
                f"fix: add text, or use a context of at most {max(1, len(tokens) - 1)}"
            )
        self.tokens = tokens
        self.context, self.size, self.seed = int(context), int(batch), int(seed)
        self.starts = len(tokens) - self.context
        """How many positions a window can start at; its last target must be there too."""
        self._key = hash_key("batches", self.seed)

    def batch(self, number: int) -> Pair:
        """Batch `number`, from 0 on: inputs and targets, (batch, context) each."""
        if not is_integer(number, least=0):
            raise ConfigError(f"the number of a batch is a whole number from 0 on, but got {number!r}")
        cycles, places = np.divmod(np.arange(self.size, dtype=np.int64) + int(number) * self.size, self.starts)
        starts = np.empty_like(places)
        for cycle in np.unique(cycles):
            here = cycles == cycle
            starts[here] = self._starts_in(int(cycle), places[here])
        return _pair(_rows(self.tokens, starts, self.context + 1))

    def epoch(self, number: int) -> float:
        """How often the tokens have been seen when batch `number` begins."""
        return number * self.size * self.context / self.starts

    def _starts_in(self, number: int, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where the windows at these places of a cycle start."""
        cycle = _cycle(self._key, number, self.context, self.starts)
        # The last epoch that begins at or before the place; one without windows begins where the next does.
        epochs = np.searchsorted(cycle.before, places, side="right") - 1
        windows, sizes = places - cycle.before[epochs], cycle.sizes[epochs]
        for size in np.unique(sizes):  # two at most
            same = sizes == size
            windows[same] = permute(windows[same], int(size), cycle.keys[epochs[same]])
        starts: NDArray[np.int64] = cycle.offsets[epochs] + windows * self.context
        return starts


class _Cycle(NamedTuple):
    """The epochs of a cycle: offset, number of windows, number of windows before, and key of each."""

    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    before: NDArray[np.int64]
    keys: NDArray[np.uint64]


@lru_cache(maxsize=16)
def _cycle(key: int, number: int, context: int, starts: int) -> _Cycle:
    keys = np.full(context, hash_key(key, number), dtype=np.uint64)
    offsets = permute(np.arange(context), context, keys)
    sizes = (starts - offsets + context - 1) // context  # none, if the text ends before the offset
    return _Cycle(offsets, sizes, np.cumsum(sizes) - sizes, splitmix64(keys ^ np.arange(context, dtype=np.uint64)))


def windows(tokens: TokenFile | TokenArray, context: int, batch: int) -> Iterator[Pair]:
    """A validation pass: every token but the first is a target exactly once, in order.

    The windows come `batch` at a time. What is left after the last whole window is a batch of its own.

    >>> [targets.tolist() for _, targets in windows(np.arange(8), context=2, batch=2)]
    [[[1, 2], [3, 4]], [[5, 6]], [[7]]]
    """
    check_positive_int(context=context, batch=batch)
    _check_tokens(tokens)
    if len(tokens) < 2:
        raise CorpusError(f"the validation text has {len(tokens)} tokens, and at least 2 are needed\nfix: add text")
    return _windows(tokens, int(context), int(batch))


def _windows(tokens: TokenFile | TokenArray, context: int, batch: int) -> Iterator[Pair]:
    whole, rest = divmod(len(tokens) - 1, context)
    for first in range(0, whole, batch):
        starts = np.arange(first, min(first + batch, whole), dtype=np.int64) * context
        yield _pair(_rows(tokens, starts, context + 1))
    if rest:
        yield _pair(_rows(tokens, np.array([whole * context], dtype=np.int64), rest + 1))


def _check_tokens(tokens: object) -> None:
    if isinstance(tokens, TokenFile):
        return
    if not isinstance(tokens, np.ndarray) or tokens.ndim != 1 or not np.issubdtype(tokens.dtype, np.integer):
        got = f"{tokens.dtype} of shape {tokens.shape}" if isinstance(tokens, np.ndarray) else type(tokens).__name__
        raise DtypeError(f"tokens are a TokenFile or a row of whole numbers, but got {got}")


def _rows(tokens: TokenFile | TokenArray, starts: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    if isinstance(tokens, TokenFile):
        return tokens.windows(starts, length)
    rows: NDArray[np.int64] = tokens[starts[:, None] + np.arange(length)].astype(np.int64)
    return rows


def _pair(rows: NDArray[np.int64]) -> Pair:
    return np.ascontiguousarray(rows[:, :-1]), np.ascontiguousarray(rows[:, 1:])
