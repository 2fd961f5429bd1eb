"""Splitting long documents loses nothing, and the boundaries depend on the text alone."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from normscope.data.documents import split_documents
from normscope.data.tokenizers.huggingface import train_bpe

seeded = settings(derandomize=True, deadline=None)

texts = st.text(alphabet="ab \n\té", max_size=120)


@seeded
@given(documents=st.lists(texts, max_size=4), size=st.integers(2, 20), steps=st.integers(1, 30))
def test_pieces_concatenate_to_the_document(documents: list[str], size: int, steps: int) -> None:
    in_steps: list[str | None] = []
    for text in documents:
        in_steps += [*(text[i : i + steps] for i in range(0, len(text), steps)), None]
    at_once = [piece for text in documents for piece in (text, None)]
    pieces = list(split_documents(iter(in_steps), size))
    assert pieces == list(split_documents(iter(at_once), size))
    assert all(piece is None or 0 < len(piece) <= size for piece in pieces)
    joined = "".join("|" if piece is None else piece for piece in pieces)
    assert joined == "".join(f"{text}|" for text in documents)


@seeded
@given(text=texts, size=st.integers(2, 20))
def test_boundaries_are_at_line_ends_or_spaces(text: str, size: int) -> None:
    pieces = [piece for piece in split_documents(iter([text, None]), size) if piece is not None]
    for piece, following in pairwise(pieces):
        ends = [i + 1 for i in range(size // 2, size) if (piece + following + " ")[i] == "\n" and i < len(piece)]
        if not piece.endswith("\n"):
            assert not ends, "there was a line end to cut at"
            assert following[0] == " " or len(piece) == size


def test_short_document_is_not_split() -> None:
    assert list(split_documents(iter(["a" * 10, None]), 10)) == ["a" * 10, None]


def test_a_boundary_has_no_white_space_after_it() -> None:
    text = "one two three\nfour\n  five six"
    assert list(split_documents(iter([text, None]), 20)) == ["one two three\n", "four\n  five six", None]
    assert list(split_documents(iter(["one two three\n\nfour five", None]), 20)) == [
        "one two three\n",
        "\nfour five",
        None,
    ]
    assert list(split_documents(iter(["one two\n three four", None]), 9)) == ["one two\n", " three", " four", None]


def test_pre_tokenized_words_stay_the_same() -> None:
    lines = [f"line {i} has some words, and {i * 7} more.\n" + "\n" * (i % 3) for i in range(200)]
    text = "".join(lines)
    tokenizer = train_bpe([text], vocab_size=400)
    pieces = [piece for piece in split_documents(iter([text, None]), 300) if piece is not None]
    assert len(pieces) > 20
    in_pieces = [token for piece in pieces for token in tokenizer.encode(piece).tolist()]
    assert in_pieces == tokenizer.encode(text).tolist()


@seeded
@given(
    parts=st.lists(st.sampled_from(["<|end|>", "a", "b ", "\n", "<", "<|", "end"]), max_size=30),
    size=st.integers(8, 20),
    steps=st.integers(1, 9),
)
def test_protected_strings_are_never_split(parts: list[str], size: int, steps: int) -> None:
    text = "".join(parts)
    pieces = list(
        split_documents(iter([*(text[i : i + steps] for i in range(0, len(text), steps)), None]), size, ["<|end|>"])
    )
    assert pieces == list(split_documents(iter([text, None]), size, ["<|end|>"]))
    assert "".join(piece for piece in pieces if piece is not None) == text
    assert sum(piece.count("<|end|>") for piece in pieces if piece is not None) == text.count("<|end|>")
