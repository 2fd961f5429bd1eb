"""The automatic choice of a tokenizer, by size and characters of the text."""

import random
from pathlib import Path

import pytest

from normscope.data.documents import TextStatistics, text_statistics
from normscope.data.prepare import prepare
from normscope.data.tokenizers.base import DEFAULT_VOCAB_SIZE
from normscope.data.tokenizers.choose import BYTES_PER_TOKEN, MAX_ALPHABET, MIN_BPE_TOKENS, default_vocab_size

HAN = [chr(0x4E00 + i) for i in range(1000)]


def made(letters: list[str], size: int) -> TextStatistics:
    """Statistics of a text of this many bytes from these letters."""
    rng = random.Random(0)
    text = "".join(rng.choices(letters, k=size // len(letters[0].encode())))
    return text_statistics(iter([text, None]))


@pytest.mark.parametrize(
    ("letters", "size", "tokens"),
    [
        (list("the cat "), 5_000, None),
        (list("the cat "), BYTES_PER_TOKEN * MIN_BPE_TOKENS - 1, None),
        (list("the cat "), BYTES_PER_TOKEN * MIN_BPE_TOKENS, MIN_BPE_TOKENS),
        (list("the cat "), 50_000, 781),
        (list("the cat "), 500_000, DEFAULT_VOCAB_SIZE),
        (HAN, 5_000, None),
        (HAN, 50_000, None),
        (HAN, 500_000, None),
        ([chr(0x430 + i) for i in range(32)], 500_000, DEFAULT_VOCAB_SIZE),  # Cyrillic: BPE covers all letters
        ([chr(0x430 + i) for i in range(32)], 50_000, 781),
    ],
)
def test_the_choice_depends_on_size_and_characters(letters: list[str], size: int, tokens: int | None) -> None:
    found, why = default_vocab_size(made(letters, size))
    assert found == tokens
    assert bool(why) == (tokens != DEFAULT_VOCAB_SIZE)


def test_a_few_emoji_do_not_matter() -> None:
    emoji = [chr(0x1F300 + i) for i in range(700)]
    english = TextStatistics(1, 1_000_000, 1_100_000, 0, "".join([*map(chr, range(32, 127)), *emoji]))
    assert default_vocab_size(english) == (DEFAULT_VOCAB_SIZE, "")


def test_large_alphabets_use_bpe() -> None:
    many = "".join(map(chr, range(0x4E00, 0x4E00 + MAX_ALPHABET + 1)))
    assert default_vocab_size(TextStatistics(1, 10**7, 3 * 10**7, 0, many))[0] == DEFAULT_VOCAB_SIZE
    assert default_vocab_size(TextStatistics(1, 10**4, 10**4, 0, many))[0] == MIN_BPE_TOKENS


def test_the_choice_is_reported_and_can_be_overridden(tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text("".join(random.Random(1).choices(HAN, k=1000)))
    corpus = prepare(text, tmp_path / "auto", tokenizer="auto")
    assert corpus.tokenizer.kind == "characters"
    assert corpus.notices[0].startswith(f"tokenizer: characters ({corpus.tokenizer.vocab_size - 1}), because")
    overruled = prepare(text, tmp_path / "bpe", tokenizer="auto", vocab_size=260)
    assert (overruled.tokenizer.kind, overruled.tokenizer.vocab_size) == ("bpe", 260)
