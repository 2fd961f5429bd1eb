"""`normscope prepare`: text to tokens, told in numbers."""

import os
from pathlib import Path

import pytest

from normscope.data.corpus import open_corpus
from tests.cli.running import refused, typed


def test_the_numbers_are_those_of_the_corpus(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, errors = typed("prepare milk.txt --out tokens --vocab-size 300 --split tail --share 0.2", capsys)
    assert (code, errors) == (0, "")
    record = open_corpus("tokens", verify=True).record
    assert f"{record.train.tokens:,} tokens" in out
    assert f"{record.validation.bytes:,} bytes" in out
    assert "vocabulary            300 tokens, bpe" in out
    assert "note: the corpus has only" in out
    assert out.endswith("train on it with: normscope train tokens\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--out tokens", "no text was named"),
        ("gone.txt --out tokens", "there is no file or folder gone.txt"),
        ("milk.txt --out milk.txt", "cannot make the folder milk.txt"),
        ("milk.txt --out /proc/tokens", "cannot make the folder /proc/tokens"),
        ("milk.txt --out tokens --vocab-size 3", "vocab_size=3"),
        ("milk.txt --out tokens --tokenizer bytes --vocab-size 300", "is for the tokenizer 'bpe'"),
        ("milk.txt --out tokens --tokenizer soup", "there is no tokenizer file soup"),
        ("milk.txt --out tokens --share 1", "share=1.0"),
        ("milk.txt --out tokens --seed -1", "seed=-1"),
    ],
)
def test_what_cannot_be_is_refused_and_leaves_nothing(
    in_folder: Path, capsys: pytest.CaptureFixture[str], words: str, message: str
) -> None:
    errors = refused(["prepare", *words.split()], capsys)
    assert message in errors
    assert os.listdir(in_folder) == ["milk.txt"]


def test_a_folder_for_the_tokens_is_needed(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, errors = typed("prepare milk.txt", capsys)
    assert code == 2
    assert "--out FOLDER" in errors
