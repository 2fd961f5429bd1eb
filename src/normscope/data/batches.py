"""Batches of tokens: shuffled windows for training, one sequential pass for validation."""

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from normscope.checks import check_positive_int, check_seed, is_integer
from normscope.data.shuffle import hash_key, permute, splitmix64
from normscope.data.token_file import TokenFile
from normscope.errors import ArgumentTypeError, ConfigError, CorpusError

TokenArray = NDArray[np.integer]
Pair = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Inputs and targets. A target is the token after its input."""


class Batches:
    """Training batches with random access: batch i is a pure function of the seed and i, so a run can resume anywhere.

    An epoch splits the tokens into adjacent windows of `context` tokens and visits each once, in random order. Each
    epoch starts at a different offset. A cycle of `context` epochs uses every offset, and so every window start,
    exactly once: all parts of a short text are seen equally often. A batch may span two epochs.

    Args:
        tokens: token file or array.
        context: tokens per window.
        batch: windows per batch.
        seed: random seed for the order.

    >>> batches = Batches(np.arange(1000), context=8, batch=4, seed=0)
    >>> inputs, targets = batches.batch(123)
    >>> inputs.shape, np.array_equal(targets, inputs + 1)
    ((4, 8), True)
    >>> batches.starts, batches.epoch(62)  # 124 windows per epoch
    (992, 2.0)
    """

    def __init__(self, tokens: TokenFile | TokenArray, context: int, batch: int, seed: int = 0) -> None:
        check_positive_int(context=context, batch=batch)
        check_seed(seed=seed)
        _check_tokens(tokens)
        if len(tokens) < context + 1:
            raise CorpusError(
                f"the training split has {len(tokens)} tokens, but context={context} needs at least {context + 1}\n"
                f"fix: add text, or use a context of at most {max(1, len(tokens) - 1)}"
            )
        self.tokens = tokens
        self.context, self.size, self.seed = int(context), int(batch), int(seed)
        self.starts = len(tokens) - self.context
        """Number of positions at which a window with its last target fits."""
        self._key = hash_key("batches", self.seed)

    def batch(self, number: int) -> Pair:
        """Return the inputs and targets of batch `number` (from 0), each of shape (batch, context)."""
        if not is_integer(number, least=0):
            raise ConfigError(f"the batch number must be an integer >= 0, but got {number!r}")
        cycles, indices = np.divmod(np.arange(self.size, dtype=np.int64) + int(number) * self.size, self.starts)
        starts = np.empty_like(indices)
        for cycle in np.unique(cycles):
            here = cycles == cycle
            starts[here] = self._starts_in(int(cycle), indices[here])
        return _pair(_rows(self.tokens, starts, self.context + 1))

    def epoch(self, number: int) -> float:
        """Return the number of epochs completed before batch `number`, as a fraction."""
        return number * self.size * self.context / self.starts

    def _starts_in(self, number: int, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the start positions of the windows at these indices of a cycle."""
        cycle = _cycle(self._key, number, self.context, self.starts)
        # The last epoch that starts at or before the index; an epoch without windows starts where the next one does.
        epochs = np.searchsorted(cycle.before, indices, side="right") - 1
        windows, sizes = indices - cycle.before[epochs], cycle.sizes[epochs]
        for size in np.unique(sizes):  # at most two sizes
            same = sizes == size
            windows[same] = permute(windows[same], int(size), cycle.keys[epochs[same]])
        starts: NDArray[np.int64] = cycle.offsets[epochs] + windows * self.context
        return starts


class _Cycle(NamedTuple):
    """For each epoch of a cycle: offset, number of windows, number of windows before it, and shuffle key."""

    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    before: NDArray[np.int64]
    keys: NDArray[np.uint64]


@lru_cache(maxsize=16)
def _cycle(key: int, number: int, context: int, starts: int) -> _Cycle:
    keys = np.full(context, hash_key(key, number), dtype=np.uint64)
    offsets = permute(np.arange(context), context, keys)
    sizes = (starts - offsets + context - 1) // context  # 0 if the text ends before the offset
    return _Cycle(offsets, sizes, np.cumsum(sizes) - sizes, splitmix64(keys ^ np.arange(context, dtype=np.uint64)))


def windows(tokens: TokenFile | TokenArray, context: int, batch: int) -> Iterator[Pair]:
    """Iterate over a validation pass: every token but the first is a target exactly once, in order.

    Yields batches of `batch` windows. A last, shorter window is a batch of its own.

    >>> [targets.tolist() for _, targets in windows(np.arange(8), context=2, batch=2)]
    [[[1, 2], [3, 4]], [[5, 6]], [[7]]]
    """
    check_positive_int(context=context, batch=batch)
    _check_tokens(tokens)
    if len(tokens) < 2:
        raise CorpusError(f"the validation split has {len(tokens)} tokens, but at least 2 are needed\nfix: add text")
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
        raise ArgumentTypeError(f"tokens must be a TokenFile or a 1-D integer array, but got {got}")


def _rows(tokens: TokenFile | TokenArray, starts: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    if isinstance(tokens, TokenFile):
        return tokens.windows(starts, length)
    rows: NDArray[np.int64] = tokens[starts[:, None] + np.arange(length)].astype(np.int64)
    return rows


def _pair(rows: NDArray[np.int64]) -> Pair:
    return np.ascontiguousarray(rows[:, :-1]), np.ascontiguousarray(rows[:, 1:])
