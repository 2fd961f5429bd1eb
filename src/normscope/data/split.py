"""Which text is for training and which is held out for validation."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from normscope.checks import is_number
from normscope.data.documents import before_words, cut
from normscope.data.readers import Pieces
from normscope.data.shuffle import key_of
from normscope.data.text_statistics import Survey
from normscope.errors import ConfigError, CorpusError

Part = Literal["train", "validation"]
Assigned = Iterator[tuple[Part, str | None]]
"""Pieces of text, each with its part; None where a document ends in that part."""

PARTS: tuple[Part, Part] = ("train", "validation")
FEWEST_BYTES = 200
SHORTEST_PIECE, LONGEST_PIECE = 2**10, 2**16
_ENOUGH_VALIDATION = 1_000_000


class Split(Protocol):
    """A way to split: the same pieces always go to the same parts."""

    def assign(self, pieces: Pieces) -> Assigned: ...


@dataclass(frozen=True)
class SeedSplit:
    """Each piece is held out, or not, by a hash of the seed and its number.

    A short document is one piece, a long one is cut into several, so that even a single text can be split.

    Args:
        seed: of the hash.
        share: of the pieces that are held out.
        piece: how many characters a piece has at most.
        exception: a piece that goes to the other part than its hash says, because that part would be empty.
        whole: words that are never cut.
    """

    seed: int
    share: float
    piece: int
    exception: int | None = None
    whole: tuple[str, ...] = ()

    def assign(self, pieces: Pieces) -> Assigned:
        numbers = iter(range(2**63))
        return _with_ends(cut(pieces, self.piece, self.whole), lambda _: self.part(next(numbers)))

    def part(self, number: int) -> Part:
        held_out = self._hash(number) < self.share
        return "validation" if held_out != (number == self.exception) else "train"

    def with_both_parts(self, pieces: Pieces) -> "SeedSplit":
        """This split, or one with an exception if either part would be empty. It reads no further than it must."""
        found: set[Part] = set()
        nearest, distance = 0, 2.0  # the piece whose hash is nearest to the border
        number = -1
        for number, _ in enumerate(text for text in cut(pieces, self.piece, self.whole) if text is not None):
            found.add(self.part(number))
            if len(found) == len(PARTS):
                return self
            if abs(self._hash(number) - self.share) < distance:
                nearest, distance = number, abs(self._hash(number) - self.share)
        if number < 1:
            raise _too_small("it cannot be cut into two pieces")
        return replace(self, exception=nearest)

    def _hash(self, number: int) -> float:
        return key_of("split", self.seed, number) / 2**64


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

    def assign(self, pieces: Pieces) -> Assigned:
        seen = 0

        def part_of(text: str) -> Part:
            nonlocal seen
            seen += len(text)
            return "train" if seen <= self.border else "validation"

        assigned = _with_ends(self._at_the_border(cut(pieces, LONGEST_PIECE, self.whole)), part_of)
        return assigned if self.ends else ((part, text) for part, text in assigned if text is not None)

    def _at_the_border(self, pieces: Pieces) -> Pieces:
        """The pieces, and the one that the border crosses in two."""
        left = self.border
        for text in pieces:
            if text is None:
                yield None
            elif 0 < (place := before_words(text, min(left, len(text)), self.whole)) < len(text):
                yield text[:place]
                yield text[place:]
                left = 0
            else:
                yield text
                left -= min(left, len(text))


def choose_split(
    how: str,
    seed: int,
    share: float | None,
    survey: Survey,
    glance: Callable[[], Pieces],
    whole: tuple[str, ...] = (),
) -> Split:
    """The split that was asked for, with both parts non-empty; no cut goes through the words that are to stay whole.

    By default a tenth is held out, or a megabyte if that is less: every validation pass reads all of it.
    """
    if survey.characters == 0:
        raise CorpusError("there is no text in what was named: all of it is empty\nfix: name files with text")
    if survey.bytes < FEWEST_BYTES:
        raise _too_small(f"it has {survey.bytes} bytes, and at least {FEWEST_BYTES} are needed")
    if share is None:
        share = min(0.1, _ENOUGH_VALIDATION / survey.bytes)
    if how == "tail":
        border = int(survey.characters * (1 - share))
        if not 0 < border < survey.characters:
            raise _too_small(f"share={share} of {survey.characters} characters leaves a part empty")
        return TailSplit(border, survey.documents > 1, whole)
    return SeedSplit(seed, share, piece_size(survey), whole=whole).with_both_parts(glance())


def piece_size(survey: Survey) -> int:
    """How long a document may be that is not cut, in characters.

    If none is a large part of the corpus, documents stay whole up to 64 K. Else there are to be some 200 pieces.
    """
    if survey.longest * 20 <= survey.characters:
        return LONGEST_PIECE
    size = min(max(survey.characters // 200, SHORTEST_PIECE), LONGEST_PIECE)
    return max(2, min(size, survey.characters // 20))


def check_split(how: str, share: float | None) -> None:
    if how not in ("seed", "tail"):
        raise ConfigError(f"split={how!r}: choose 'seed' or 'tail'")
    if share is not None and not (is_number(share) and 0 < share < 1):
        raise ConfigError(f"share={share!r} must be a number between 0 and 1\nfix: share=0.1 holds out a tenth")


def _with_ends(pieces: Pieces, part_of: Callable[[str], Part]) -> Assigned:
    """Each text with its part, and a None for each part that has some of a document when the document ends."""
    touched: set[Part] = set()
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
