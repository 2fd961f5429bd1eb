"""The split is deterministic and complete, and neither part is empty."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normscope.data.documents import TextPieces, TextStatistics, text_statistics
from normscope.data.split import (
    PARTS,
    CorpusPart,
    CorpusSplit,
    RandomSplit,
    TailSplit,
    check_split,
    choose_split,
    piece_size,
)
from normscope.errors import ConfigError, CorpusError, NormscopeError
from tests.support import every_refusal

seeded = settings(derandomize=True, deadline=None)


def pieces_of(*documents: str) -> Callable[[], TextPieces]:
    return lambda: iter([piece for text in documents for piece in (text, None)])


def chosen(how: str, *documents: str, seed: int = 0, val_fraction: float | None = None) -> CorpusSplit:
    look = text_statistics(pieces_of(*documents)())
    return choose_split(how, seed, val_fraction, look, pieces_of(*documents))


def parts(split: CorpusSplit, *documents: str) -> dict[CorpusPart, str]:
    """Text of each part, with | at document ends."""
    text = dict.fromkeys(PARTS, "")
    for part, piece in split.assign(pieces_of(*documents)()):
        text[part] += "|" if piece is None else piece
    return text


LONG = "".join(f"line {i}, of many\n" for i in range(4000))
lists_of_documents = st.lists(st.text(alphabet="abc \né", min_size=50, max_size=300), min_size=4, max_size=12)


@seeded
@given(documents=lists_of_documents, seed=st.integers(0, 50), val_fraction=st.floats(0.001, 0.999))
def test_each_piece_is_in_one_part_and_none_is_lost(documents: list[str], seed: int, val_fraction: float) -> None:
    split = chosen("random", *documents, seed=seed, val_fraction=val_fraction)
    assigned = list(split.assign(pieces_of(*documents)()))
    assert "".join(text for _, text in assigned if text is not None) == "".join(documents)
    assert {part for part, text in assigned if text} == set(PARTS)
    assert assigned == list(
        chosen("random", *documents, seed=seed, val_fraction=val_fraction).assign(pieces_of(*documents)())
    )


@seeded
@given(documents=lists_of_documents, val_fraction=st.floats(0.01, 0.99))
def test_the_tail_split_is_exact(documents: list[str], val_fraction: float) -> None:
    whole = "".join(documents)
    border = int(len(whole) * (1 - val_fraction))
    got = parts(chosen("tail", *documents, val_fraction=val_fraction), *documents)
    assert got["train"].replace("|", "") == whole[:border]
    assert got["validation"].replace("|", "") == whole[border:]


def test_a_single_text_has_no_end_markers() -> None:
    text = LONG + "é🐈"
    got = parts(chosen("tail", text, val_fraction=0.1), text)
    assert got == {"train": text[: int(len(text) * 0.9)], "validation": text[int(len(text) * 0.9) :]}


def test_documents_end_in_each_part_that_they_are_in() -> None:
    assert parts(TailSplit(5, mark_ends=True), "abc", "defg", "hi") == {"train": "abc|de|", "validation": "fg|hi|"}
    split = RandomSplit(seed=0, val_fraction=0.4, piece=5)
    got = parts(split, LONG[:300], LONG[300:500], "")
    assert [got[part].count("|") for part in PARTS] == [2, 2]
    assert all(got[part].endswith("|") for part in PARTS)


def test_the_split_depends_on_the_seed() -> None:
    held_out = {parts(chosen("random", LONG, seed=seed), LONG)["validation"] for seed in range(5)}
    assert len(held_out) == 5


def test_the_validation_fraction_is_approximate() -> None:
    for val_fraction in (0.1, 0.5):
        got = parts(chosen("random", LONG, val_fraction=val_fraction), LONG)
        assert abs(len(got["validation"]) / len(LONG) - val_fraction) < 0.1


def test_the_default_validation_fraction() -> None:
    def val_fraction(size: int) -> float:
        split = choose_split("random", 0, None, TextStatistics(1, size, size, size, ""), pieces_of(LONG))
        assert isinstance(split, RandomSplit)
        return split.val_fraction

    assert val_fraction(1_000_000) == val_fraction(10_000_000) == 0.1
    assert val_fraction(100_000_000) == 0.01


@pytest.mark.parametrize("val_fraction", [1e-9, 1 - 1e-9])
@pytest.mark.parametrize("seed", range(3))
def test_neither_part_is_empty(val_fraction: float, seed: int) -> None:
    documents = [f"document number {i}" for i in range(20)]
    split = chosen("random", *documents, val_fraction=val_fraction, seed=seed)
    got = parts(split, *documents)
    assert min(text.count("|") for text in got.values()) == 1
    assert split == chosen("random", *documents, val_fraction=val_fraction, seed=seed)


def test_forced_piece_depends_on_seed() -> None:
    documents = [f"document number {i}" for i in range(20)]
    found = {
        parts(chosen("random", *documents, val_fraction=1e-9, seed=seed), *documents)["validation"] for seed in range(8)
    }
    assert len(found) > 3


@pytest.mark.parametrize(
    ("longest", "characters", "size"),
    [
        (200, 200, 10),
        (20_000, 20_000, 1000),
        (100_000, 100_000, 1024),
        (1_000_000, 1_000_000, 5000),
        (10**9, 10**9, 65536),
        (5_000, 100_000, 65536),  # many small documents: not split
        (5_001, 100_000, 1024),
    ],
)
def test_piece_sizes(longest: int, characters: int, size: int) -> None:
    assert piece_size(TextStatistics(1, characters, characters, longest, "")) == size


@every_refusal(
    (
        "empty",
        CorpusError,
        "the corpus is empty: the sources have no text\nfix: ",
        lambda: chosen("random", ""),
    ),
    ("small", CorpusError, "too small .* 199 bytes, but at least 200", lambda: chosen("random", "a" * 199)),
    (
        "tail",
        CorpusError,
        "val_fraction=0.999 of 300 characters leaves one part empty",
        lambda: chosen("tail", "a" * 300, val_fraction=0.999),
    ),
)
def test_invalid_arguments(error: type[NormscopeError], words: str, mistake: Callable[[], object]) -> None:
    with pytest.raises(error, match=words):
        mistake()


def test_unknown_kinds_of_split() -> None:
    with pytest.raises(ConfigError, match="split='head' must be 'random' or 'tail'"):
        check_split("head", None)
    for val_fraction in (0, 1, -0.1, "much", True):
        with pytest.raises(ConfigError, match=r"val_fraction=.* must be a number between 0 and 1\nfix: "):
            check_split("random", val_fraction)  # type: ignore[arg-type]
