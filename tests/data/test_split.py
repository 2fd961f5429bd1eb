"""The split: the same each time, nothing lost, nothing in both parts, and neither part empty."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normscope.data.readers import Pieces
from normscope.data.split import PARTS, Part, SeedSplit, Split, TailSplit, check_split, choose_split, piece_size
from normscope.data.text_statistics import Survey, survey
from normscope.errors import ConfigError, CorpusError, NormscopeError
from tests.support import every_refusal

seeded = settings(derandomize=True, deadline=None)


def pieces_of(*documents: str) -> Callable[[], Pieces]:
    return lambda: iter([piece for text in documents for piece in (text, None)])


def chosen(how: str, *documents: str, seed: int = 0, share: float | None = None) -> Split:
    look = survey(pieces_of(*documents)())
    return choose_split(how, seed, share, look, pieces_of(*documents))


def parts(split: Split, *documents: str) -> dict[Part, str]:
    """The text of each part, with | where a document ends."""
    text = dict.fromkeys(PARTS, "")
    for part, piece in split.assign(pieces_of(*documents)()):
        text[part] += "|" if piece is None else piece
    return text


LONG = "".join(f"line {i}, of many\n" for i in range(4000))
lists_of_documents = st.lists(st.text(alphabet="abc \né", min_size=50, max_size=300), min_size=4, max_size=12)


@seeded
@given(documents=lists_of_documents, seed=st.integers(0, 50), share=st.floats(0.001, 0.999))
def test_pieces_go_to_one_part_each_and_make_the_text(documents: list[str], seed: int, share: float) -> None:
    split = chosen("seed", *documents, seed=seed, share=share)
    assigned = list(split.assign(pieces_of(*documents)()))
    assert "".join(text for _, text in assigned if text is not None) == "".join(documents)
    assert {part for part, text in assigned if text} == set(PARTS)
    assert assigned == list(chosen("seed", *documents, seed=seed, share=share).assign(pieces_of(*documents)()))


@seeded
@given(documents=lists_of_documents, share=st.floats(0.01, 0.99))
def test_the_tail_is_held_out_to_the_character(documents: list[str], share: float) -> None:
    whole = "".join(documents)
    border = int(len(whole) * (1 - share))
    got = parts(chosen("tail", *documents, share=share), *documents)
    assert got["train"].replace("|", "") == whole[:border]
    assert got["validation"].replace("|", "") == whole[border:]


def test_a_single_text_in_two_has_no_ends() -> None:
    text = LONG + "é🐈"
    got = parts(chosen("tail", text, share=0.1), text)
    assert got == {"train": text[: int(len(text) * 0.9)], "validation": text[int(len(text) * 0.9) :]}


def test_documents_end_in_every_part_that_has_some_of_them() -> None:
    assert parts(TailSplit(5, ends=True), "abc", "defg", "hi") == {"train": "abc|de|", "validation": "fg|hi|"}
    split = SeedSplit(seed=0, share=0.4, piece=5)
    got = parts(split, LONG[:300], LONG[300:500], "")
    assert [got[part].count("|") for part in PARTS] == [2, 2]
    assert all(got[part].endswith("|") for part in PARTS)


def test_the_seed_decides() -> None:
    held_out = {parts(chosen("seed", LONG, seed=seed), LONG)["validation"] for seed in range(5)}
    assert len(held_out) == 5


def test_the_share_is_about_what_was_asked_for() -> None:
    for share in (0.1, 0.5):
        got = parts(chosen("seed", LONG, share=share), LONG)
        assert abs(len(got["validation"]) / len(LONG) - share) < 0.1


def test_the_default_share_is_a_tenth_or_a_megabyte() -> None:
    def share(size: int) -> float:
        split = choose_split("seed", 0, None, Survey(1, size, size, size, ""), pieces_of(LONG))
        assert isinstance(split, SeedSplit)
        return split.share

    assert share(1_000_000) == share(10_000_000) == 0.1
    assert share(100_000_000) == 0.01


@pytest.mark.parametrize("share", [1e-9, 1 - 1e-9])
@pytest.mark.parametrize("seed", range(3))
def test_neither_part_is_empty(share: float, seed: int) -> None:
    documents = [f"document number {i}" for i in range(20)]
    split = chosen("seed", *documents, share=share, seed=seed)
    got = parts(split, *documents)
    assert min(text.count("|") for text in got.values()) == 1
    assert split == chosen("seed", *documents, share=share, seed=seed)


def test_the_exception_differs_with_the_seed() -> None:
    documents = [f"document number {i}" for i in range(20)]
    found = {parts(chosen("seed", *documents, share=1e-9, seed=seed), *documents)["validation"] for seed in range(8)}
    assert len(found) > 3


@pytest.mark.parametrize(
    ("longest", "characters", "size"),
    [
        (200, 200, 10),
        (20_000, 20_000, 1000),
        (100_000, 100_000, 1024),
        (1_000_000, 1_000_000, 5000),
        (10**9, 10**9, 65536),
        (5_000, 100_000, 65536),  # many documents, none of them large: they stay whole
        (5_001, 100_000, 1024),
    ],
)
def test_how_long_a_piece_is(longest: int, characters: int, size: int) -> None:
    assert piece_size(Survey(1, characters, characters, longest, "")) == size


@every_refusal(
    ("empty", CorpusError, "there is no text in what was named: all of it is empty\nfix: ", lambda: chosen("seed", "")),
    ("small", CorpusError, "too small .* 199 bytes, and at least 200", lambda: chosen("seed", "a" * 199)),
    (
        "tail",
        CorpusError,
        "share=0.999 of 300 characters leaves a part empty",
        lambda: chosen("tail", "a" * 300, share=0.999),
    ),
)
def test_refusals(error: type[NormscopeError], words: str, mistake: Callable[[], object]) -> None:
    with pytest.raises(error, match=words):
        mistake()


def test_unknown_ways() -> None:
    with pytest.raises(ConfigError, match="split='head': choose 'seed' or 'tail'"):
        check_split("head", None)
    for share in (0, 1, -0.1, "much", True):
        with pytest.raises(ConfigError, match=r"share=.* must be a number between 0 and 1\nfix: "):
            check_split("seed", share)  # type: ignore[arg-type]
