"""Preparing a corpus: complete, deterministic, and without leftovers."""

import gzip
import importlib
import io
import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from normscope.data.corpus import open_corpus
from normscope.data.prepare import prepare
from normscope.data.sources import changed_sources
from normscope.data.tokenizers import CharacterTokenizer
from normscope.errors import ConfigError, CorpusError, FileError, NormscopeError, TokenError
from tests.data.texts import POEM, contents, text_of, write
from tests.data.tokenizers.examples import like_bert, like_gpt2, saved

FILES = ["corpus.json", "tokenizer.json", "train.bin", "validation.bin"]


@pytest.fixture
def poem(tmp_path: Path) -> Path:
    return write(tmp_path / "texts", poem=POEM) / "poem.txt"


@pytest.mark.parametrize("kind", ["characters", "bytes", "bpe", "file"])
def test_every_tokenizer_round_trips_the_text(kind: str, poem: Path, tmp_path: Path) -> None:
    tokenizer = saved(like_gpt2(), tmp_path) if kind == "file" else kind
    corpus = prepare(poem, tmp_path / "out", tokenizer=tokenizer, vocab_size=400 if kind == "bpe" else None)
    assert list(contents(tmp_path / "out")) == FILES
    train, validation = text_of(corpus, "train"), text_of(corpus, "validation")
    assert train.endswith("|")
    assert validation.endswith("|")
    lines = [line for text in (train, validation) for line in text.removesuffix("|").splitlines(keepends=True)]
    assert sorted(lines) == sorted(POEM.splitlines(keepends=True)), "cut at line ends, and each in one part"
    record = corpus.record
    assert record.train.bytes + record.validation.bytes == len(POEM.encode())
    assert (corpus.train.bytes, corpus.validation.bytes) == (record.train.bytes, record.validation.bytes)
    assert record.train.documents == record.validation.documents == 1
    assert record.vocab_size == corpus.tokenizer.vocab_size
    assert record.floor_bits_per_byte is None
    assert 0.03 < corpus.validation.bytes / len(POEM.encode()) < 0.2
    open_corpus(tmp_path / "out", verify=True)


def test_tail_split_is_exact(poem: Path, tmp_path: Path) -> None:
    corpus = prepare(poem, tmp_path / "out", split="tail", val_fraction=0.1)
    border = int(len(POEM) * 0.9)
    tokenizer = CharacterTokenizer.of([POEM])
    np.testing.assert_array_equal(corpus.train.window(0, len(corpus.train)), tokenizer.encode(POEM[:border]))
    np.testing.assert_array_equal(corpus.validation.window(0, len(corpus.validation)), tokenizer.encode(POEM[border:]))
    assert corpus.record.train.documents == corpus.record.validation.documents == 1


def test_bpe_is_trained_on_the_training_part_only(tmp_path: Path) -> None:
    text = write(tmp_path / "texts", a="the cat sat\n" * 900 + "zyzzyva zyzzyva\n" * 75)
    corpus = prepare(text, tmp_path / "out", tokenizer="bpe", vocab_size=300, split="tail", val_fraction=0.1)
    assert "zyzzyva" not in text_of(corpus, "train")
    assert len(corpus.tokenizer.encode("the cat sat")) == 3
    assert len(corpus.tokenizer.encode("zyzzyva")) == 7


def test_documents_of_every_format(tmp_path: Path) -> None:
    arrow: Any = importlib.import_module("pyarrow")
    parquet: Any = importlib.import_module("pyarrow.parquet")
    folder = write(tmp_path / "texts", a="one " * 10, b="", c="two " * 10)
    (folder / "d.jsonl").write_text("".join(json.dumps({"body": f"line {i} " * 5}) + "\n" for i in range(20)))
    parquet.write_table(arrow.table({"body": [f"row {i} " * 5 for i in range(20)]}), folder / "e.parquet")
    corpus = prepare(folder, tmp_path / "out", column="body")
    documents = sorted(text_of(corpus, "train").split("|")[:-1] + text_of(corpus, "validation").split("|")[:-1])
    wanted = ["one " * 10, "two " * 10]
    wanted += [f"{kind} {i} " * 5 for kind in ("line", "row") for i in range(20)]
    assert documents == sorted(wanted)
    assert corpus.record.train.documents + corpus.record.validation.documents == 42
    assert [Path(source.name).name for source in corpus.record.sources] == [
        "a.txt",
        "b.txt",
        "c.txt",
        "d.jsonl",
        "e.parquet",
    ]


def test_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, poem: Path) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(POEM.encode())))
    corpus = prepare("-", tmp_path / "out")
    assert list(contents(tmp_path / "out")) == FILES, "what was kept for reading is gone"
    assert corpus.record.sources[0].name == "-"
    assert changed_sources(corpus.record.sources) == {}
    from_file = prepare(poem, tmp_path / "other")
    assert corpus.record.train == from_file.record.train


def test_preparation_is_deterministic(poem: Path, tmp_path: Path) -> None:
    first = prepare(poem, tmp_path / "one", tokenizer="bpe", vocab_size=400, seed=3)
    code = (
        "import sys; from normscope.data.prepare import prepare\n"
        f"prepare({str(poem)!r}, {str(tmp_path / 'two')!r}, tokenizer='bpe', vocab_size=400, seed=3)\n"
        "print('torch' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "5"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "False\n", "torch is not needed for it"
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    prepare(poem, tmp_path / "three", tokenizer="bpe", vocab_size=400, seed=4)
    assert contents(tmp_path / "three")["validation.bin"] != contents(tmp_path / "one")["validation.bin"]
    assert first.record.settings["seed"] == 3


def test_the_record_contains_the_settings(poem: Path, tmp_path: Path) -> None:
    prepare(poem, tmp_path / "out", tokenizer="bytes", seed=5, val_fraction=0.25)
    record = json.loads((tmp_path / "out" / "corpus.json").read_text())
    assert record["settings"] == {
        "tokenizer": "bytes",
        "vocab_size": None,
        "column": "text",
        "seed": 5,
        "split": "random",
        "val_fraction": 0.25,
        "allow_special": False,
    }
    assert (record["format"], record["version"], record["tokenizer"]) == ("normscope corpus", 1, "bytes")
    assert record["dtype"] == "uint16"
    assert record["sources"][0]["name"] == str(poem)
    assert record["sources"][0]["size"] == len(POEM.encode())


def test_progress_is_complete(poem: Path, tmp_path: Path) -> None:
    for tokenizer, passes in (("bytes", 2), ("bpe", 3), ("auto", 3), (saved(like_gpt2(), tmp_path), 2)):
        told: list[tuple[int, int]] = []
        prepare(poem, tmp_path / "out", tokenizer=tokenizer, progress=lambda *now, told=told: told.append(now))
        total = passes * len(POEM.encode())
        assert told[-1] == (total, total)
        assert told == sorted(told)


def test_notices(tmp_path: Path) -> None:
    poem = write(tmp_path / "texts", poem=POEM)
    (poem / "picture.png").write_bytes(b"\x89PNG")
    corpus = prepare(poem, tmp_path / "out", tokenizer="bpe", vocab_size=60_000)
    skipped, size, small = corpus.notices
    assert "skipped 1 file" in skipped
    got = corpus.tokenizer.vocab_size
    assert size == f"the text is too short for vocab_size=60000: the vocabulary has {got} tokens"
    assert small.startswith(f"small corpus ({len(POEM):,} characters): expect overfitting")
    long = write(tmp_path / "long", poem=POEM * 10)
    assert prepare(long, tmp_path / "out").notices == ()


def test_a_lossy_tokenizer_is_reported(tmp_path: Path) -> None:
    text = write(tmp_path / "texts", a="The cat sat, the hat sat.\n" * 5000)
    tokenizer = saved(like_bert(), tmp_path)
    corpus = prepare(text, tmp_path / "out", tokenizer=tokenizer)
    lossy, end = corpus.notices
    assert lossy == (
        f"the tokenizer {tokenizer} is lossy: 'The cat sa' becomes 'the cat sa'; the model will learn the latter"
    )
    assert "added <|end|>" in end
    assert open_corpus(tmp_path / "out").notices == corpus.notices


def test_characters_missing_from_tokenizer_raise(poem: Path, tmp_path: Path) -> None:
    CharacterTokenizer("abc").save(tmp_path / "tokenizer.json")
    with pytest.raises(TokenError, match=r"'V' \(U\+0056, LATIN CAPITAL LETTER V\) is not in the tokenizer's alphabet"):
        prepare(poem, tmp_path / "out", tokenizer=tmp_path / "tokenizer.json")


def test_a_failure_keeps_the_old_corpus(poem: Path, tmp_path: Path) -> None:
    prepare(poem, tmp_path / "out")
    before = contents(tmp_path / "out")
    bad = tmp_path / "bad.txt"
    bad.write_bytes(POEM.encode() + b"\xff")
    with pytest.raises(FileError, match=r"bad\.txt is not UTF-8"):
        prepare(bad, tmp_path / "out")

    def interrupt(done: int, total: int) -> None:
        if done > 0.9 * total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(poem, tmp_path / "out", tokenizer="bytes", progress=interrupt)
    assert contents(tmp_path / "out") == before
    prepare(poem, tmp_path / "out", tokenizer="bytes")
    assert open_corpus(tmp_path / "out", verify=True).tokenizer.kind == "bytes"


def test_a_file_that_changes_while_it_is_read(poem: Path, tmp_path: Path) -> None:
    def change(done: int, total: int) -> None:
        if done == total // 2:
            poem.write_bytes(POEM.replace("cät", "dög").encode())

    with pytest.raises(FileError, match=r"poem\.txt changed while it was being read\nfix: "):
        prepare(poem, tmp_path / "out", progress=change)
    assert not (tmp_path / "out" / "train.bin").exists()


@pytest.mark.parametrize("tokenizer", ["characters", "bytes"])
def test_memory_does_not_grow_with_text_size(tokenizer: str, tmp_path: Path) -> None:
    path = tmp_path / "large.txt"
    block = POEM.encode() * 25
    with path.open("wb") as file:
        for _ in range(1 + 20_000_000 // len(block)):
            file.write(block)
    prepare(write(tmp_path / "small", poem=POEM), tmp_path / "warm", tokenizer=tokenizer)
    tracemalloc.start()
    try:
        prepare(path, tmp_path / "out", tokenizer=tokenizer)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert path.stat().st_size > 20_000_000
    assert peak < 8_000_000


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"split": "head"}, ConfigError, "split='head'"),
        ({"val_fraction": 2}, ConfigError, "val_fraction=2 must be"),
        ({"seed": -1}, ConfigError, "seed=-1 must be"),
        ({"column": 3}, ConfigError, "column=3 must be"),
        ({"tokenizer": "bpe", "vocab_size": 100}, ConfigError, "vocab_size=100 must be"),
        ({"vocab_size": 300}, ConfigError, "vocab_size=300 is for the tokenizer 'bpe'.*\nfix: "),
        ({"tokenizer": "words"}, FileError, "there is no tokenizer file words\nfix: "),
    ],
)
def test_invalid_arguments_are_refused_before_reading(
    options: dict[str, Any], error: type[NormscopeError], words: str, poem: Path, tmp_path: Path
) -> None:
    with pytest.raises(error, match=words):
        prepare(poem, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_empty_and_tiny_corpora(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="the sources have no text\nfix: "):
        prepare(write(tmp_path / "empty", a="", b=""), tmp_path / "out")
    with pytest.raises(CorpusError, match="it has 11 bytes, but at least 200 are needed\nfix: "):
        prepare(write(tmp_path / "tiny", a="hello world"), tmp_path / "out")
    with pytest.raises(FileError, match="there is no file or folder nowhere"):
        prepare("nowhere", tmp_path / "out")
    packed = tmp_path / "poem.gz"
    packed.write_bytes(gzip.compress(POEM.encode(), mtime=0))
    with pytest.raises(FileError, match=r"poem\.gz is not text: byte 0x8B at offset 1 \(line 1\)"):
        prepare(packed, tmp_path / "out")
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match=r"cannot create the folder .*file/out: .*\nfix: choose another location"):
        prepare(write(tmp_path / "texts", a=POEM), tmp_path / "file" / "out")


@pytest.mark.parametrize("split", ["random", "tail"])
def test_special_tokens_are_never_split(tmp_path: Path, split: Any) -> None:
    """In a text without spaces, which is cut anywhere else: all of them are ends, and nothing of them is text."""
    text = write(tmp_path / "texts", a="猫犬<|endoftext|>" * 4000)
    for val_fraction in (0.1, 0.1001, 0.1002):
        corpus = prepare(
            text,
            tmp_path / "out",
            tokenizer="bpe",
            vocab_size=270,
            split=split,
            val_fraction=val_fraction,
            allow_special=True,
        )
        parts = [part.window(0, len(part)) for part in (corpus.train, corpus.validation)]
        ends = sum((part == corpus.tokenizer.eos_token_id).sum() for part in parts)
        assert 4000 <= ends <= 4002  # a part may end inside a document
        assert {corpus.tokenizer.decode(part) for part in parts} <= {"猫犬" * n for n in range(4000)}
        assert "endoftext" not in corpus.tokenizer.to_json()
        assert corpus.record.train.documents + corpus.record.validation.documents == ends
        assert corpus.record.train.bytes + corpus.record.validation.bytes == 4000 * 6
