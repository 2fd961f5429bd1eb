"""Damaged, modified or missing corpora are refused with the reason."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from normscope.data.corpus import open_corpus
from normscope.data.prepare import prepare
from normscope.errors import FileError
from normscope.storage.files import with_checksum
from tests.data.texts import POEM, write


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    prepare(write(tmp_path / "texts", poem=POEM), tmp_path / "prepared", tokenizer="bytes")
    return tmp_path / "prepared"


def fault(folder: Path, **options: Any) -> str:
    with pytest.raises(FileError) as caught:
        open_corpus(folder, **options)
    assert "\nfix: " in str(caught.value)
    return str(caught.value)


def change_record(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change corpus.json and its checksum."""
    record = json.loads((folder / "corpus.json").read_text())
    change(record)
    del record["checksum"]
    (folder / "corpus.json").write_text(json.dumps(with_checksum(record)))


@pytest.mark.parametrize("change", [{"floor_bits_per_byte": 0.5}, {"checksum": None}, {"notices": ["x"]}])
def test_altered_corpus_json_raises(change: dict[str, Any], folder: Path) -> None:
    record = json.loads((folder / "corpus.json").read_text())
    (folder / "corpus.json").write_text(json.dumps(record | change))
    assert "corpus.json is damaged: its checksum is wrong" in fault(folder)


def test_a_missing_folder_and_a_folder_without_a_corpus(tmp_path: Path) -> None:
    assert fault(tmp_path / "x").startswith(f"there is no folder {tmp_path / 'x'}")
    assert fault(tmp_path).startswith(f"{tmp_path} is not a prepared corpus (corpus.json is missing)")


def test_an_interrupted_preparation(folder: Path) -> None:
    (folder / "corpus.json").unlink()
    assert "is incomplete: its preparation was interrupted" in fault(folder)


@pytest.mark.parametrize("name", ["train.bin", "validation.bin", "tokenizer.json"])
def test_missing_file_raises(name: str, folder: Path) -> None:
    (folder / name).unlink()
    assert fault(folder).startswith(f"{folder / name} is missing")


@pytest.mark.parametrize("name", ["train.bin", "validation.bin"])
def test_file_of_other_length_raises(name: str, folder: Path) -> None:
    path = folder / name
    data = path.read_bytes()
    path.write_bytes(data[:-2])
    count = len(data) // 2
    words = f"it is truncated: it has {count - 1} tokens, not {count} as in corpus.json"
    assert fault(folder).startswith(f"{path} is damaged or was modified: {words}")
    path.write_bytes(data[:-1])
    assert "not a multiple of the size of uint16" in fault(folder)
    path.write_bytes(data + b"ab")
    assert "it is too long" in fault(folder)
    path.write_bytes(b"")
    assert "it is truncated: it has 0 tokens" in fault(folder)


@pytest.mark.parametrize("name", ["train.bin", "validation.bin"])
def test_verify_detects_changed_bytes(name: str, folder: Path) -> None:
    open_corpus(folder, verify=True)
    data = bytearray((folder / name).read_bytes())
    data[10] ^= 1
    (folder / name).write_bytes(data)
    open_corpus(folder)
    assert fault(folder, verify=True).startswith(f"{folder / name} is damaged or was modified: its checksum")


def test_other_tokenizer_raises(folder: Path) -> None:
    (folder / "tokenizer.json").write_text('{"kind": "characters", "alphabet": "abc"}')
    assert "tokenizer.json is damaged or was modified: its checksum" in fault(folder)


def test_a_huge_tokenizer_is_refused_without_reading_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("normscope.data.corpus.file_sha256", None)  # of a terabyte, it would take hours
    with (folder / "tokenizer.json").open("r+b") as file:
        file.truncate(1 << 40)
    assert "it has 1,099,511,627,776 bytes" in fault(folder)


def test_a_tokenizer_with_another_vocab_size(folder: Path) -> None:
    change_record(folder, lambda record: record.update(vocab_size=300))
    assert "it has 257 tokens, not 300 as in corpus.json" in fault(folder)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b"\xff\xfe", "is not UTF-8"),
        (b"[]", "is not valid: expected `object`, got `array`"),
    ],
)
def test_an_unreadable_record(content: bytes, words: str, folder: Path) -> None:
    (folder / "corpus.json").write_bytes(content)
    assert fault(folder).startswith(f"{folder / 'corpus.json'} {words}")


def test_corpus_json_without_checksum_raises(folder: Path) -> None:
    record = json.loads((folder / "corpus.json").read_text())
    del record["checksum"]
    (folder / "corpus.json").write_text(json.dumps(record))
    assert "corpus.json is damaged: it has no checksum" in fault(folder)


@pytest.mark.parametrize("content", ["{}", '{"format": "another"}'])
def test_a_record_of_another_format(content: str, folder: Path) -> None:
    (folder / "corpus.json").write_text(content)
    assert fault(folder).startswith(f"{folder / 'corpus.json'} is not a normscope corpus")


def test_corpus_json_of_other_version_raises(folder: Path) -> None:
    change_record(folder, lambda record: record.update(version=2))
    assert "has format version 2, but this normscope reads version 1" in fault(folder)


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record.pop("train"),
        lambda record: record.update(color="red"),
        lambda record: record["train"].update(tokens=-1),
        lambda record: record["train"].update(tokens=True),
        lambda record: record["train"].update(sha256="0"),
        lambda record: record["train"].pop("tokens"),
        lambda record: record["train"].update(tokens="many"),
        lambda record: record.update(dtype="float32"),
        lambda record: record.update(settings=None),
        lambda record: record["settings"].update(seed=[1]),
        lambda record: record["sources"].append({"name": "x"}),
        lambda record: record.update(floor_bits_per_byte="low"),
    ],
)
def test_a_record_with_missing_or_invalid_fields(change: Callable[[dict[str, Any]], object], folder: Path) -> None:
    change_record(folder, change)
    assert "corpus.json is not valid: " in fault(folder)
