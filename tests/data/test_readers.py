"""Reading text, .jsonl and .parquet files; errors name the position."""

import codecs
import hashlib
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normscope.data import readers
from normscope.data.readers import read_documents
from normscope.data.sources import SourceFile, find_sources
from normscope.errors import ConfigError, FileError

seeded = settings(derandomize=True, deadline=None)

pa: Any = importlib.import_module("pyarrow")  # which has no types
pq: Any = importlib.import_module("pyarrow.parquet")


def source(path: Path, column: str = "text") -> SourceFile:
    return find_sources(path, column=column)[0][0]


def documents(path: Path, column: str = "text") -> list[str]:
    """Documents of a file; checks that the callback got all bytes in order."""
    digest = hashlib.sha256()
    found, this = [], ""
    for piece in read_documents(source(path, column), digest.update):
        if piece is None:
            found.append(this)
            this = ""
        else:
            this += piece
    assert this == "", "a document ends with a None"
    assert digest.digest() == hashlib.sha256(path.read_bytes()).digest()
    return found


def fault(path: Path, column: str = "text") -> str:
    with pytest.raises(FileError) as caught:
        documents(path, column)
    return str(caught.value)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "CHUNK_BYTES", 3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("texts")


@seeded
@given(text=st.text().filter(lambda text: not text.startswith("\ufeff")), chunk=st.integers(1, 7))
def test_a_text_file_is_one_unchanged_document(text: str, chunk: int, folder: Path) -> None:
    path = folder / "a.txt"
    path.write_bytes(text.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readers, "CHUNK_BYTES", chunk)
        assert documents(path) == [text]


@pytest.mark.usefixtures("small_chunks")
def test_line_ends_are_kept_and_a_byte_order_mark_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(codecs.BOM_UTF8 + "a\r\nb\rc\n\ufeff".encode())
    assert documents(path) == ["a\r\nb\rc\n\ufeff"]


@seeded
@given(before=st.text(max_size=12), chunk=st.integers(1, 9))
def test_invalid_utf8_is_reported_with_its_position(before: str, chunk: int, folder: Path) -> None:
    path = folder / "b.txt"
    good = before.encode()
    path.write_bytes(good + b"\xe9tude")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readers, "CHUNK_BYTES", chunk)
        message = fault(path)
    assert f"byte 0xE9 at offset {len(good)} (line {good.count(10) + 1}) is invalid" in message


def test_the_suggested_fix_depends_on_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\ntwo \xe9")
    assert fault(path) == (
        f"{path} is not UTF-8: byte 0xE9 at offset 8 (line 2) is invalid\n"
        f"fix: iconv -f WINDOWS-1252 -t UTF-8 {path} > utf8.txt, with the actual encoding"
    )
    path.write_bytes("wide".encode("utf-16"))
    assert "fix: iconv -f UTF-16 -t UTF-8" in fault(path)
    for binary in (b"\x89PNG\0\0\0", b"\x89PNG\r\n\x1a\n", b"GIF89a\x01\x02\xff\xff"):
        path.write_bytes(binary)
        assert f"{path} is not text: byte 0x" in fault(path)
        assert "\nfix: this looks like a binary file" in fault(path)


def test_a_truncated_character_at_the_end_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("né".encode()[:-1])
    assert "byte 0xC3 at offset 1 (line 1)" in fault(path)


def test_each_jsonl_line_is_a_document(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    rows = [{"text": "one\ntwo", "id": 1}, {"text": ""}, {"text": "🐈", "other": None}]
    path.write_bytes(codecs.BOM_UTF8 + "\n\n".join(map(json.dumps, rows)).encode())
    assert documents(path) == ["one\ntwo", "", "🐈"]
    path.write_text('{"body": "x"}\n')
    assert documents(path, column="body") == ["x"]


@pytest.mark.parametrize(
    ("line", "problem", "fix"),
    [
        (b'{"text": ', "invalid JSON", "fix or delete the line"),
        (b"[" * 100_000, "invalid JSON", "fix or delete the line"),
        (b'["text"]', "expected a JSON object, got list", 'write each line as an object: {"text": "..."}'),
        (b'{"body": "x"}', "no field 'text'; it has 'body'", "--column body"),
        (b'{"id": 1, "a b": "x"}', "no field 'text'; it has 'id', 'a b'", "--column 'a b'"),
        (b'{"a": "x", "b": "y"}', "no field 'text'", "--column NAME, with the column that holds the text"),
        (
            b'{"text": null}',
            "'text' is null, not a string",
            "--column NAME, with the column that holds the text, or",
        ),
        (b'{"text": 3, "body": "x"}', "'text' is 3, not a string", "--column body, or delete the line"),
        (b'{"text": "\xff"}', "byte 0xFF at offset 10 is not UTF-8", "write the file as UTF-8"),
        (b'{"text": "a\\ud83d"}', "lone surrogate '\\ud83d' at position 1", "write both surrogates"),
    ],
)
def test_invalid_jsonl_lines_are_reported_with_their_number(
    line: bytes, problem: str, fix: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "fine"}\n\n' + line + b"\n")
    message = fault(path)
    assert message.startswith(f"{path}, line 3: {problem}")
    assert f"\nfix: {fix}" in message


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_each_parquet_row_is_a_document(kind: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    texts = [f"row {i} é🐈\n" for i in range(700)]
    table = pa.table({"id": range(700), "text": pa.array(texts, type=kind)})
    pq.write_table(table, path, row_group_size=100)
    assert documents(path) == texts


def test_invalid_parquet_files(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": [1, 2], "text": ["a", None]}), path)
    assert fault(path) == f"{path}, row 2: 'text' is null, not a string\nfix: remove such rows"
    fix = "fix: --column NAME, with the column that holds the text"
    assert fault(path, "body") == f"{path} has no column 'body'; it has 'id', 'text'\n{fix}"
    assert fault(path, "id") == f"column 'id' of {path} holds int64, not text\n{fix}"
    path.write_bytes(b"nothing of the kind")
    assert f"{path} is not a valid parquet file" in fault(path)


def test_parquet_without_pyarrow_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a"]}), path)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"reading .*a\.parquet needs pyarrow\nfix: pip install pyarrow"):
        documents(path)


def test_an_unreadable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Root may read any file, so the refusal is made here and not by the system.
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    path = tmp_path / "a.txt"
    path.write_text("x")
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(FileError, match=r"cannot read .*a\.txt: Permission denied\nfix: check its permissions"):
        list(read_documents(source(path), lambda _: None))
