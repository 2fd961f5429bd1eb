"""Batches of conversations: whole documents packed into windows, with a target only where the assistant writes."""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from normscope.checks import check_positive_int, check_seed, is_integer
from normscope.data.batches import Batches, Pair, windows
from normscope.data.corpus import IS_START, IS_TRAINED, Corpus
from normscope.data.shuffle import hash_key, permute
from normscope.data.split import CorpusPart
from normscope.data.token_file import TokenFile
from normscope.errors import ConfigError, CorpusError

Int64Array = NDArray[np.int64]
PackedBatch = tuple[Int64Array, Int64Array, Int64Array]
"""Inputs, targets (-1 for none) and positions, which start at 0 in each document: see `GPT.forward`."""
_CHUNK = 2**20


class PackedBatches:
    """Training batches of packed documents, with random access as `Batches`.

    Documents are packed once, best fit by decreasing length; longer ones than a window are cut. Each epoch visits all
    windows in a random order. What a window does not fill is a document without targets.

    Args:
        tokens: token file.
        marks: the marks of its tokens.
        context: tokens per window.
        batch: windows per batch.
        seed: random seed for the order.
    """

    def __init__(self, tokens: TokenFile, marks: TokenFile, context: int, batch: int, seed: int = 0) -> None:
        check_positive_int(context=context, batch=batch)
        check_seed(seed=seed)
        self.context, self.size, self.seed = int(context), int(batch), int(seed)
        self._tokens, self._marks = tokens, marks
        self._starts, self._lengths = _documents(marks, self.context)
        if not len(self._starts):
            raise CorpusError(
                f"no conversation has a reply within its first {context} tokens\n"
                f"fix: a longer --context, or shorter conversations"
            )
        self._windows = pack(self._lengths, self.context)

    def __len__(self) -> int:
        """The number of windows."""
        return len(self._windows)

    def batch(self, number: int) -> PackedBatch:
        """Return batch `number` (from 0): three arrays of shape (batch, context)."""
        if not is_integer(number, least=0):
            raise ConfigError(f"the batch number must be an integer >= 0, but got {number!r}")
        epochs, places = np.divmod(np.arange(self.size, dtype=np.int64) + int(number) * self.size, len(self))
        keys = np.array([hash_key("packed batches", self.seed, epoch) for epoch in epochs.tolist()], dtype=np.uint64)
        return self._rows(permute(places, len(self), keys).tolist())

    def in_order(self) -> Iterator[PackedBatch]:
        """Iterate over all windows once, in order, for validation."""
        for first in range(0, len(self), self.size):
            yield self._rows(list(range(first, min(first + self.size, len(self)))))

    def epoch(self, number: int) -> float:
        """Return the number of epochs completed before batch `number`, as a fraction."""
        return number * self.size / len(self)

    def _rows(self, window_numbers: list[int]) -> PackedBatch:
        shape = len(window_numbers), self.context
        inputs, targets = np.zeros(shape, np.int64), np.full(shape, -1, np.int64)
        positions = np.zeros(shape, np.int64)
        for row, number in enumerate(window_numbers):
            stop = 0
            for document in self._windows[number]:
                begin, length = int(self._starts[document]), int(self._lengths[document])
                tokens = self._tokens.window(begin, length + 1).astype(np.int64)
                marks = self._marks.window(begin, length + 1)
                place = slice(stop, stop + length)
                inputs[row, place], positions[row, place] = tokens[:-1], np.arange(length)
                targets[row, place] = np.where(marks[1:] & IS_TRAINED, tokens[1:], -1)
                stop += length
            positions[row, stop:] = np.arange(self.context - stop)
        return inputs, targets, positions


def pack(lengths: Int64Array, size: int) -> list[list[int]]:
    """Distribute documents over windows of this size: the longest first, each to where it fits best.

    >>> pack(np.array([3, 5, 2, 6, 4]), 8)
    [[3, 2], [1, 0], [4]]
    """
    bins: list[list[int]] = []
    with_space: dict[int, list[int]] = defaultdict(list)  # free tokens -> windows
    spaces: list[int] = []  # its keys, sorted
    for document in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[document])
        place = bisect_left(spaces, length)
        if place == len(spaces):
            number, space = len(bins), size
            bins.append([])
        else:
            space = spaces[place]
            number = with_space[space].pop()
            if not with_space[space]:
                del spaces[place]
        bins[number].append(document)
        left = space - length
        if left and not with_space[left]:
            insort(spaces, left)
        if left:
            with_space[left].append(number)
    return bins


def _documents(marks: TokenFile, context: int) -> tuple[Int64Array, Int64Array]:
    """Start and number of inputs of each document that has a target in its first `context` tokens."""
    starts, trained = list[Int64Array](), list[Int64Array]()
    for begin in range(0, len(marks), _CHUNK):
        chunk = marks.window(begin, min(_CHUNK, len(marks) - begin))
        starts.append(np.flatnonzero(chunk & IS_START) + begin)
        trained.append(np.flatnonzero(chunk & IS_TRAINED) + begin)
    first, places = np.concatenate([*starts, []]).astype(np.int64), np.concatenate([*trained, []]).astype(np.int64)
    lengths = np.minimum(np.diff(np.append(first, len(marks))) - 1, context)
    # Targets are the tokens after the first one, up to the last input's.
    has_target = np.searchsorted(places, first + lengths, "right") > np.searchsorted(places, first, "right")
    return first[has_target], lengths[has_target]


def training_batches(corpus: Corpus, context: int, batch: int, seed: int) -> Batches | PackedBatches:
    """The training batches of a corpus: windows of text, or packed conversations."""
    if corpus.marks is None:
        return Batches(corpus.train, context, batch, seed)
    return PackedBatches(corpus.train, corpus.marks["train"], context, batch, seed)


def validation_batches(corpus: Corpus, context: int, batch: int) -> Iterator[Pair | PackedBatch]:
    """The batches of a validation pass."""
    if corpus.marks is None:
        return windows(corpus.validation, context, batch)
    part: CorpusPart = "validation"
    return PackedBatches(corpus.validation, corpus.marks[part], context, batch).in_order()
