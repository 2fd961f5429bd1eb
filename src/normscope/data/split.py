"""Which text is for training and which is held out for validation."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from normscope.checks import is_number
from normscope.data.documents import avoid_splitting, split_documents
from normscope.data.readers import TextPieces
from normscope.data.shuffle import hash_key
from normscope.data.text_statistics import TextStatistics
from normscope.errors import ConfigError, CorpusError

CorpusPart = Literal["train", "validation"]
AssignedText = Iterator[tuple[CorpusPart, str | None]]
"""Pieces of text, each with its part; None where a document ends in that part."""

PARTS: tuple[CorpusPart, CorpusPart] = ("train", "validation")
MIN_CORPUS_BYTES = 200
MIN_PIECE, MAX_PIECE = 2**10, 2**16
_ENOUGH_VALIDATION = 1_000_000


class CorpusSplit(Protocol):
    """A way to split: the same pieces always go to the same parts."""

    def assign(self, pieces: TextPieces) -> AssignedText: ...


@dataclass(frozen=True)
class RandomSplit:
    """Each piece is held out, or not, by a hash of the seed and its number.

    A short document is one piece, a long one is cut into several, so that even a single text can be split.

    Args:
        seed: of the hash.
        val_fraction: of the pieces that are held out.
        piece: how many characters a piece has at most.
        exception: a piece that goes to the other part than its hash says, because that part would be empty.
        whole: words that are never cut.
    """

    seed: int
    val_fraction: float
    piece: int
    exception: int | None = None
    whole: tuple[str, ...] = ()

    def assign(self, pieces: TextPieces) -> AssignedText:
        numbers = iter(range(2**63))
        return _with_ends(split_documents(pieces, self.piece, self.whole), lambda _: self.part(next(numbers)))

    def part(self, number: int) -> CorpusPart:
        held_out = self._hash(number) < self.val_fraction
        return "validation" if held_out != (number == self.exception) else "train"

    def with_non_empty_parts(self, pieces: TextPieces) -> "RandomSplit":
        """This split, or one with an exception if either part would be empty. It reads no further than it must."""
        found: set[CorpusPart] = set()
        nearest, distance = 0, 2.0  # the piece whose hash is nearest to the border
        number = -1
        for number, _ in enumerate(
            text for text in split_documents(pieces, self.piece, self.whole) if text is not None
        ):
            found.add(self.part(number))
            if len(found) == len(PARTS):
                return self
            if abs(self._hash(number) - self.val_fraction) < distance:
                nearest, distance = number, abs(self._hash(number) - self.val_fraction)
        if number < 1:
            raise _too_small("it cannot be cut into two pieces")
        return replace(self, exception=nearest)

    def _hash(self, number: int) -> float:
        return hash_key("split", self.seed, number) / 2**64


@dataclass(frozen=True)
class TailSplit:
    """The last characters of the corpus are held out.

    Args:
        border: how many characters are for training.
        ends: whether documents end; one text that is split in two does not.
        whole: words that are never cut.
    """

    border: int
    ends: bool
    whole: tuple[str, ...] = ()

    def assign(self, pieces: TextPieces) -> AssignedText:
        seen = 0

        def part_of(text: str) -> CorpusPart:
            nonlocal seen
            seen += len(text)
            return "train" if seen <= self.border else "validation"

        assigned = _with_ends(self._at_the_border(split_documents(pieces, MAX_PIECE, self.whole)), part_of)
        return assigned if self.ends else ((part, text) for part, text in assigned if text is not None)

    def _at_the_border(self, pieces: TextPieces) -> TextPieces:
        """The pieces, and the one that the border crosses in two."""
        left = self.border
        for text in pieces:
            if text is None:
                yield None
            elif 0 < (place := avoid_splitting(text, min(left, len(text)), self.whole)) < len(text):
                yield text[:place]
                yield text[place:]
                left = 0
            else:
                yield text
                left -= min(left, len(text))


def choose_split(
    how: str,
    seed: int,
    val_fraction: float | None,
    survey: TextStatistics,
    preview: Callable[[], TextPieces],
    whole: tuple[str, ...] = (),
) -> CorpusSplit:
    """The split that was asked for, with both parts non-empty; no cut goes through the words that are to stay whole.

    By default a tenth is held out, or a megabyte if that is less: every validation pass reads all of it.
    """
    if survey.characters == 0:
        raise CorpusError("the corpus is empty: the sources have no text\nfix: name files with text")
    if survey.bytes < MIN_CORPUS_BYTES:
        raise _too_small(f"it has {survey.bytes} bytes, and at least {MIN_CORPUS_BYTES} are needed")
    if val_fraction is None:
        val_fraction = min(0.1, _ENOUGH_VALIDATION / survey.bytes)
    if how == "tail":
        border = int(survey.characters * (1 - val_fraction))
        if not 0 < border < survey.characters:
            raise _too_small(f"val_fraction={val_fraction} of {survey.characters} characters leaves a part empty")
        return TailSplit(border, survey.documents > 1, whole)
    return RandomSplit(seed, val_fraction, piece_size(survey), whole=whole).with_non_empty_parts(preview())


def piece_size(survey: TextStatistics) -> int:
    """How long a document may be that is not cut, in characters.

    If none is a large part of the corpus, documents stay whole up to 64 K. Else there are to be some 200 pieces.
    """
    if survey.longest * 20 <= survey.characters:
        return MAX_PIECE
    size = min(max(survey.characters // 200, MIN_PIECE), MAX_PIECE)
    return max(2, min(size, survey.characters // 20))


def check_split(how: str, val_fraction: float | None) -> None:
    if how not in ("random", "tail"):
        raise ConfigError(f"split={how!r}: choose 'random' or 'tail'")
    if val_fraction is not None and not (is_number(val_fraction) and 0 < val_fraction < 1):
        raise ConfigError(
            f"val_fraction={val_fraction!r} must be a number between 0 and 1\nfix: val_fraction=0.1 holds out a tenth"
        )


def _with_ends(pieces: TextPieces, part_of: Callable[[str], CorpusPart]) -> AssignedText:
    """Each text with its part, and a None for each part that has some of a document when the document ends."""
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
        f"the corpus is too small to be split into training and validation: {why}\n"
        f"fix: add text; a few hundred kilobytes are a good start"
    )
