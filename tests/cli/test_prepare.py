"""`normscope prepare`: text to tokens, told in numbers."""

import os
import shutil
from pathlib import Path

import pytest

from normscope.data.corpus import open_corpus
from normscope.data.tokenizers.base import DEFAULT_VOCAB_SIZE
from normscope.training.recipes import Recipe
from tests.cli.running import refused, typed
from tests.data.texts import contents


def test_the_numbers_are_those_of_the_corpus(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, errors = typed("prepare milk.txt --out tokens --vocab-size 300 --split tail --val-fraction 0.2", capsys)
    assert (code, errors) == (0, "")
    record = open_corpus("tokens", verify=True).record
    assert f"{record.train.tokens:,} tokens" in out
    assert f"{record.validation.bytes:,} bytes" in out
    assert "vocabulary            300 tokens, bpe" in out
    assert "note: small corpus (" in out
    assert out.endswith("train on it with: normscope train tokens\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--out tokens", "no sources given"),
        ("gone.txt --out tokens", "there is no file or folder gone.txt"),
        ("milk.txt --out milk.txt", "cannot create the folder milk.txt"),
        ("milk.txt --out /proc/tokens", "cannot create the folder /proc/tokens"),
        ("milk.txt --out tokens --vocab-size 3", "--vocab-size 3"),
        ("milk.txt --out tokens --tokenizer bytes --vocab-size 300", "is for the tokenizer 'bpe'"),
        ("milk.txt --out tokens --tokenizer soup", "there is no tokenizer file soup"),
        ("milk.txt --out tokens --val-fraction 1", "--val-fraction 1.0"),
        ("milk.txt --out tokens --seed -1", "--seed -1"),
    ],
)
def test_what_cannot_be_is_refused_and_leaves_nothing(
    in_folder: Path, capsys: pytest.CaptureFixture[str], words: str, message: str
) -> None:
    errors = refused(["prepare", *words.split()], capsys)
    assert message in errors
    assert os.listdir(in_folder) == ["milk.txt"]


def test_a_run_is_no_text(in_folder: Path, trained_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(trained_run, "runs/milk")
    code, out, _ = typed("prepare . --out tokens --tokenizer bytes", capsys)
    assert code == 0
    assert "note: .: skipped 1 run or prepared corpus: runs/milk\n" in out
    assert [source.name for source in open_corpus("tokens").record.sources] == ["milk.txt"]
    out = typed("prepare . --out more --tokenizer bytes", capsys)[1]
    assert "note: .: skipped 2 runs or prepared corpora: runs/milk, tokens\n" in out


@pytest.mark.parametrize("command", ["train", "prepare"])
def test_the_help_says_how_many_tokens_bpe_learns(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = typed(f"{command} --help", capsys)
    assert f"Vocabulary size of bpe (default {DEFAULT_VOCAB_SIZE}; auto uses less" in " ".join(out.split())
    assert Recipe("nanochat").vocab_size == DEFAULT_VOCAB_SIZE


def test_nothing_is_overwritten(in_folder: Path, trained_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert typed("prepare milk.txt --out tokens --tokenizer bytes", capsys)[0] == 0
    before = contents(Path("tokens"))
    errors = refused(["prepare", "milk.txt", "--out", "tokens"], capsys)
    assert "tokens already holds a prepared corpus" in errors
    assert "fix: name another folder with --out, or delete this one" in errors
    assert contents(Path("tokens")) == before
    assert ". is not empty: it contains milk.txt, tokens" in refused(["prepare", "milk.txt", "--out", "."], capsys)
    assert "is not empty: it contains checkpoints, config.json" in refused(
        ["prepare", "milk.txt", "--out", str(trained_run)], capsys
    )
    Path("tokens/corpus.json").unlink()  # as a preparation leaves it that was killed
    assert typed("prepare milk.txt --out tokens", capsys)[0] == 0


def test_a_folder_for_the_tokens_is_needed(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, errors = typed("prepare milk.txt", capsys)
    assert code == 2
    assert "--out FOLDER" in errors


def test_what_suits_the_text_is_taken_unless_told_otherwise(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, _ = typed("prepare milk.txt --out tokens", capsys)
    assert f"{open_corpus('tokens').tokenizer.vocab_size} tokens, characters\n" in out
    assert "note: tokenizer: characters" in out
    _, out, _ = typed("prepare milk.txt --out more --vocab-size 260", capsys)
    assert "vocabulary            260 tokens, bpe" in out


def test_a_special_token_in_the_text_is_text_unless_it_is_allowed(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "prepare milk.txt --tokenizer bytes --split tail --out"
    text = Path("milk.txt").read_text()
    Path("milk.txt").write_text(f"one<|endoftext|>two<|end|>{text}")
    typed(f"{words} plain", capsys)
    plain = open_corpus("plain")
    assert plain.tokenizer.decode(plain.train.window(0, 26)) == "one<|endoftext|>two<|end|>"
    assert plain.record.train.documents == 1
    typed(f"{words} special --allow-special", capsys)
    special = open_corpus("special")
    end = special.tokenizer.eos_token_id
    assert special.train.window(0, 8).tolist() == [*b"one", end, *b"two", end]
    assert special.record.train.documents == 2
    parts = special.record.train, special.record.validation
    assert sum(part.bytes for part in parts) == len(f"onetwo{text}".encode())
