"""Read documents from text, .jsonl and .parquet files in pieces: a file may be larger than memory.

A text file is one document; each line of a .jsonl file and each row of a .parquet file is one.
"""

import codecs
import hashlib
import importlib
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO

from normscope.data.documents import TextPieces
from normscope.data.sources import SourceFile, SourceFingerprint, column_advice
from normscope.errors import ConfigError, FileError
from normscope.storage.files import os_errors

OnBytes = Callable[[bytes], None]
"""Callback that gets all bytes of a file, once and in order: for the checksum and for progress."""

CHUNK_BYTES = 2**17


def read_documents(source: SourceFile, on_bytes: OnBytes) -> TextPieces:
    """Yield the documents of a file. Text is kept unchanged, including line ends; a byte-order mark is dropped."""
    with os_errors(f"cannot read {source.name}", "check its permissions"), source.path.open("rb") as file:
        if source.format == "jsonl":
            yield from _read_jsonl(source, file, on_bytes)
        elif source.format == "parquet":
            while chunk := file.read(CHUNK_BYTES):
                on_bytes(chunk)
            yield from read_parquet(source)
        else:
            yield from _read_text(source, file, on_bytes)


def _read_text(source: SourceFile, file: BinaryIO, on_bytes: OnBytes) -> TextPieces:
    decoder = codecs.getincrementaldecoder("utf-8")()
    offset, lines, first = 0, 0, True
    while True:
        chunk = file.read(CHUNK_BYTES)
        on_bytes(chunk)
        pending = len(decoder.getstate()[0])  # bytes of a character split by the previous chunk
        try:
            text = decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:
            raise _not_utf8(source, error, offset - pending, lines) from None
        offset += len(chunk)
        lines += chunk.count(b"\n")
        if first:
            text, first = text.removeprefix("\ufeff"), False
        if text:
            yield text
        if not chunk:
            yield None
            return


def _not_utf8(source: SourceFile, error: UnicodeDecodeError, offset: int, lines: int) -> FileError:
    position, data = error.start, error.object
    line = lines + data[:position].count(b"\n") + 1
    wide = offset == 0 and data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    encoding = "UTF-16" if wide else "WINDOWS-1252"
    fix = f"iconv -f {encoding} -t UTF-8 {source.name} > utf8.txt, with the actual encoding"
    what = "UTF-8"
    if _is_binary(data) and not wide:
        what, fix = "text", "this looks like a binary file; exclude it"
    return FileError(
        f"{source.name} is not {what}: byte 0x{data[position]:02X} at offset {offset + position} (line {line}) "
        f"is invalid\nfix: {fix}"
    )


def _read_jsonl(source: SourceFile, file: BinaryIO, on_bytes: OnBytes) -> TextPieces:
    for number, line in enumerate(file, start=1):
        on_bytes(line)
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        if line.strip():
            yield _text_of_line(source, number, line)
            yield None


def _text_of_line(source: SourceFile, number: int, line: bytes) -> str:
    try:
        row = json.loads(line.decode())
    except UnicodeDecodeError as error:
        problem = f"byte 0x{line[error.start]:02X} at offset {error.start} is not UTF-8"
        raise _bad_line(source, number, problem, "write the file as UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise _bad_line(source, number, f"invalid JSON: {error}", "fix or delete the line") from None
    if not isinstance(row, dict):
        fix = f'write each line as an object: {{"{source.column}": "..."}}'
        raise _bad_line(source, number, f"expected a JSON object, got {type(row).__name__}", fix)
    texts = [name for name, value in row.items() if isinstance(value, str)]
    if source.column not in row:
        names = ", ".join(map(repr, row)) or "nothing"
        raise _bad_line(source, number, f"no field {source.column!r}; it has {names}", column_advice(texts))
    text = row[source.column]
    if not isinstance(text, str):
        problem = f"{source.column!r} is {json.dumps(text)[:40]}, not a string"
        raise _bad_line(source, number, problem, f"{column_advice(texts)}, or delete the line")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        problem = f"lone surrogate {text[error.start]!a} at position {error.start}"
        raise _bad_line(source, number, problem, "write both surrogates of the pair") from None
    return text


def _is_binary(data: bytes) -> bool:
    """Guess whether data is binary: text in any single-byte encoding has hardly any control characters."""
    controls = sum(byte < 32 and byte not in b"\t\n\f\r" for byte in data)
    return b"\0" in data or controls > len(data) / 50


def _bad_line(source: SourceFile, number: int, problem: str, fix: str) -> FileError:
    return FileError(f"{source.name}, line {number}: {problem}\nfix: {fix}")


_ROWS_AT_A_TIME = 256


def read_parquet(source: SourceFile) -> Iterator[str | None]:
    """Yield the text of each row, followed by None."""
    try:
        arrow: Any = importlib.import_module("pyarrow")
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise ConfigError(f"reading {source.name} needs pyarrow\nfix: pip install pyarrow") from None
    try:
        with parquet.ParquetFile(source.path, pre_buffer=False) as file:
            _check_column(source, arrow, file.schema_arrow)
            number = 0
            for rows in file.iter_batches(_ROWS_AT_A_TIME, columns=[source.column]):
                for text in rows.column(0).to_pylist():
                    number += 1
                    if text is None:
                        problem = f"{source.name}, row {number}: {source.column!r} is null, not a string"
                        raise FileError(f"{problem}\nfix: remove such rows")
                    yield text
                    yield None
    except (arrow.ArrowException, UnicodeDecodeError) as error:
        raise FileError(f"{source.name} is not a valid parquet file: {error}\nfix: copy or write it again") from error


def _check_column(source: SourceFile, arrow: Any, schema: Any) -> None:
    if source.column not in schema.names:
        names = ", ".join(map(repr, schema.names))
        raise FileError(
            f"{source.name} has no column {source.column!r}; it has {names}\nfix: {column_advice(schema.names)}"
        )
    kind = schema.field(source.column).type
    values = kind.value_type if arrow.types.is_dictionary(kind) else kind  # pandas categories are dictionaries
    if values not in (arrow.string(), arrow.large_string()):
        raise FileError(
            f"column {source.column!r} of {source.name} holds {kind}, not text\nfix: {column_advice(schema.names)}"
        )


Progress = Callable[[int, int], None]
"""Callback that gets the bytes read so far and the total of all passes."""


class SourceReader:
    """Reads source files in several passes.

    The first pass records their fingerprints; later passes check that no file has changed.

    Args:
        sources: the files.
        passes: number of passes, for `progress`.
        progress: called with the bytes read so far and the total.
    """

    def __init__(self, sources: Sequence[SourceFile], passes: int, progress: Progress | None = None) -> None:
        self._sources = sources
        self._progress = progress
        self._sizes = [_status(source)[0] for source in sources]
        self._total = passes * sum(self._sizes)
        self._done = 0
        self._fingerprints: dict[SourceFile, SourceFingerprint] = {}

    @property
    def fingerprints(self) -> tuple[SourceFingerprint, ...]:
        """Fingerprint of each source, after the first pass."""
        return tuple(self._fingerprints.values())

    def pieces(self) -> TextPieces:
        """Read all documents in one pass."""
        for source in self._sources:
            size, written = _status(source)
            digest = hashlib.sha256()
            counted = self._done

            def on_bytes(data: bytes, digest: "hashlib._Hash" = digest) -> None:
                digest.update(data)
                self._done += len(data)

            for piece in read_documents(source, on_bytes):
                self._report()
                yield piece
            now = SourceFingerprint(source.name, str(source.path.resolve()), size, written, digest.hexdigest())
            if self._fingerprints.setdefault(source, now).sha256 != now.sha256 or self._done - counted != size:
                raise FileError(
                    f"{source.name} changed while it was being read\nfix: wait until it is complete, then try again"
                )
            self._report()

    def preview(self) -> TextPieces:
        """Read documents without progress or checks; the pass may be abandoned."""
        for source in self._sources:
            yield from read_documents(source, lambda _: None)

    def skip_pass(self) -> None:
        """Count a pass as done for `progress`."""
        self._done += sum(self._sizes)

    def _report(self) -> None:
        if self._progress is not None:
            self._progress(min(self._done, self._total), self._total)


def _status(source: SourceFile) -> tuple[int, int]:
    with os_errors(f"cannot read {source.name}", "check that it still exists"):
        status = source.path.stat()
    return status.st_size, status.st_mtime_ns
