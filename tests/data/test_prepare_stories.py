"""The built-in stories as a corpus: size, validation stories and entropy floor."""

import math
from pathlib import Path

import pytest

from normscope.data import stories
from normscope.data.corpus import open_corpus
from normscope.data.prepare import prepare_stories
from normscope.errors import ConfigError
from tests.data.texts import contents, text_of


@pytest.mark.parametrize("tokenizer", ["characters", "bytes", "bpe"])
def test_complete_stories_of_the_requested_size(tokenizer: str, tmp_path: Path) -> None:
    corpus = prepare_stories(tmp_path, size_bytes=30_000, validation_bytes=8_000, seed=3, tokenizer=tokenizer)
    train = text_of(corpus, "train").split("|")[:-1]
    validation = text_of(corpus, "validation").split("|")[:-1]
    assert 30_000 <= corpus.train.bytes == sum(map(len, train)) < 33_000
    assert 8_000 <= corpus.validation.bytes == sum(map(len, validation)) < 11_000
    assert train[0] == next(stories.stories(6)).text
    assert validation[0] == next(stories.stories(7)).text
    assert not set(train) & set(validation)
    assert corpus.record.validation.documents == len(validation)
    assert sorted(contents(tmp_path)) == ["corpus.json", "tokenizer.json", "train.bin", "validation.bin"]


def test_the_entropy_floor_is_that_of_the_validation_stories(tmp_path: Path) -> None:
    corpus = prepare_stories(tmp_path, size_bytes=3_000, validation_bytes=20_000)
    validation = text_of(corpus, "validation").split("|")[:-1]
    bits = sum(stories.nats(text) for text in validation) / math.log(2)
    assert corpus.floor_bits_per_byte == pytest.approx(bits / corpus.validation.bytes, rel=1e-9)
    expected = corpus.record.expected_floor_bits_per_byte
    assert expected == stories.entropy_floor().bits_per_byte
    assert corpus.floor_bits_per_byte == pytest.approx(expected, rel=0.1)
    assert open_corpus(tmp_path).floor_bits_per_byte == corpus.floor_bits_per_byte


def test_preparation_is_deterministic(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    prepare_stories(tmp_path / "a", size_bytes=5_000, validation_bytes=1_000, progress=lambda *now: told.append(now))
    prepare_stories(tmp_path / "b", size_bytes=5_000, validation_bytes=1_000)
    prepare_stories(tmp_path / "c", size_bytes=5_000, validation_bytes=1_000, seed=1)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert contents(tmp_path / "a")["train.bin"] != contents(tmp_path / "c")["train.bin"]
    assert told == sorted(told)
    assert told[-1] == (6_000, 6_000)


def test_largest_seed(tmp_path: Path) -> None:
    corpus = prepare_stories(tmp_path, size_bytes=1_000, validation_bytes=500, seed=2**63 - 1)
    assert text_of(corpus, "validation").split("|")[0] == next(stories.stories(2**64 - 1)).text


def test_invalid_arguments(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="size_bytes=0 must be"):
        prepare_stories(tmp_path, size_bytes=0)
    with pytest.raises(ConfigError, match=r"seed=1\.5 must be"):
        prepare_stories(tmp_path, seed=1.5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"seed=9223372036854775808 .*below 2\^63.*\nfix: "):
        prepare_stories(tmp_path, seed=2**63)
    with pytest.raises(ConfigError, match="vocab_size=300 is for the tokenizer 'bpe'"):
        prepare_stories(tmp_path, vocab_size=300)
