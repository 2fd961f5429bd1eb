"""Split text into training and validation parts."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from normscope.checks import is_number
from normscope.data.documents import TextPieces, TextStatistics, avoid_splitting, split_documents
from normscope.data.shuffle import hash_key
from normscope.errors import ConfigError, CorpusError

CorpusPart = Literal["train", "validation"]
AssignedText = Iterator[tuple[CorpusPart, str | None]]
"""Pieces of text with their part; None marks the end of a document in that part."""

PARTS: tuple[CorpusPart, CorpusPart] = ("train", "validation")
MIN_CORPUS_BYTES = 200
MIN_PIECE, MAX_PIECE = 2**10, 2**16
_ENOUGH_VALIDATION = 1_000_000


@dataclass(frozen=True)
class RandomSplit:
    """Hold out random pieces: a hash of the seed and the piece's number decides.

    A short document is one piece, a long one is split into several, so a single text can be split, too.

    Args:
        seed: random seed.
        val_fraction: fraction of the pieces to hold out.
        piece: maximum number of characters per piece.
        exception: number of a piece that goes to the other part than its hash says, so that no part is empty.
        protected: strings that are never split.
    """

    seed: int
    val_fraction: float
    piece: int
    exception: int | None = None
    protected: tuple[str, ...] = ()

    def assign(self, pieces: TextPieces) -> AssignedText:
        numbers = iter(range(2**63))
        return _with_ends(split_documents(pieces, self.piece, self.protected), lambda _: self.part(next(numbers)))

    def part(self, number: int) -> CorpusPart:
        held_out = self._hash(number) < self.val_fraction
        return "validation" if held_out != (number == self.exception) else "train"

    def with_non_empty_parts(self, pieces: TextPieces) -> "RandomSplit":
        """Return this split, with an exception if a part would be empty. Reads only as much as needed."""
        found: set[CorpusPart] = set()
        nearest, distance = 0, 2.0  # the piece whose hash is nearest to the threshold
        number = -1
        for number, _ in enumerate(
            text for text in split_documents(pieces, self.piece, self.protected) if text is not None
        ):
            found.add(self.part(number))
            if len(found) == len(PARTS):
                return self
            if abs(self._hash(number) - self.val_fraction) < distance:
                nearest, distance = number, abs(self._hash(number) - self.val_fraction)
        if number < 1:
            raise _too_small("it cannot be split into two pieces")
        return replace(self, exception=nearest)

    def _hash(self, number: int) -> float:
        return hash_key("split", self.seed, number) / 2**64


@dataclass(frozen=True)
class TailSplit:
    """Hold out the end of the corpus.

    Args:
        train_characters: number of characters for training.
        mark_ends: whether to mark the ends of documents; not for a single text split in two.
        protected: strings that are never split.
    """

    train_characters: int
    mark_ends: bool
    protected: tuple[str, ...] = ()

    def assign(self, pieces: TextPieces) -> AssignedText:
        seen = 0

        def part_of(text: str) -> CorpusPart:
            nonlocal seen
            seen += len(text)
            return "train" if seen <= self.train_characters else "validation"

        assigned = _with_ends(self._split_at_boundary(split_documents(pieces, MAX_PIECE, self.protected)), part_of)
        return assigned if self.mark_ends else ((part, text) for part, text in assigned if text is not None)

    def _split_at_boundary(self, pieces: TextPieces) -> TextPieces:
        """Yield the pieces; the one that crosses the boundary in two."""
        left = self.train_characters
        for text in pieces:
            if text is None:
                yield None
            elif 0 < (boundary := avoid_splitting(text, min(left, len(text)), self.protected)) < len(text):
                yield text[:boundary]
                yield text[boundary:]
                left = 0
            else:
                yield text
                left -= min(left, len(text))


CorpusSplit = RandomSplit | TailSplit
"""Assigns pieces of text to parts, deterministically."""


def choose_split(
    how: str,
    seed: int,
    val_fraction: float | None,
    statistics: TextStatistics,
    preview: Callable[[], TextPieces],
    protected: tuple[str, ...] = (),
) -> CorpusSplit:
    """Create the split, with both parts non-empty. The `protected` strings are never split.

    By default a tenth is held out, but at most 1 MB: every validation pass reads all of it.
    """
    if statistics.characters == 0:
        raise CorpusError("the corpus is empty: the sources have no text\nfix: name files with text")
    if statistics.bytes < MIN_CORPUS_BYTES:
        raise _too_small(f"it has {statistics.bytes} bytes, but at least {MIN_CORPUS_BYTES} are needed")
    if val_fraction is None:
        val_fraction = min(0.1, _ENOUGH_VALIDATION / statistics.bytes)
    if how == "tail":
        train_characters = int(statistics.characters * (1 - val_fraction))
        if not 0 < train_characters < statistics.characters:
            raise _too_small(f"val_fraction={val_fraction} of {statistics.characters} characters leaves one part empty")
        return TailSplit(train_characters, statistics.documents > 1, protected)
    return RandomSplit(seed, val_fraction, piece_size(statistics), protected=protected).with_non_empty_parts(preview())


def piece_size(statistics: TextStatistics) -> int:
    """Return the maximum piece size in characters.

    If no document is a large part of the corpus, documents up to 64 K stay whole. Otherwise aim for about 200 pieces.
    """
    if statistics.longest * 20 <= statistics.characters:
        return MAX_PIECE
    size = min(max(statistics.characters // 200, MIN_PIECE), MAX_PIECE)
    return max(2, min(size, statistics.characters // 20))


def check_split(how: str, val_fraction: float | None) -> None:
    if how not in ("random", "tail"):
        raise ConfigError(f"split={how!r} must be 'random' or 'tail'")
    if val_fraction is not None and not (is_number(val_fraction) and 0 < val_fraction < 1):
        raise ConfigError(
            f"val_fraction={val_fraction!r} must be a number between 0 and 1\nfix: val_fraction=0.1 holds out a tenth"
        )


def _with_ends(pieces: TextPieces, part_of: Callable[[str], CorpusPart]) -> AssignedText:
    """Yield each text with its part, and at the end of a document None for each part that has some of it."""
    touched: set[CorpusPart] = set()
    for text in pieces:
        if text is None:
            yield from ((part, None) for part in PARTS if part in touched)
            touched.clear()
        else:
            part = part_of(text)
            touched.add(part)
            yield part, text


def _too_small(why: str) -> CorpusError:
    return CorpusError(
        f"the corpus is too small to split into training and validation: {why}\n"
        f"fix: add text; a few hundred kilobytes are a good start"
    )
