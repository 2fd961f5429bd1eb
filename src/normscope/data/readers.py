"""Read documents from files in pieces: a file may be larger than memory.

A reader yields strings and Nones. The strings up to a None are the pieces of one document; None marks its end. A text
file is one document; each line of a .jsonl file and each row of a .parquet file is one.
"""

import codecs
import json
from collections.abc import Callable, Iterator
from typing import BinaryIO

from normscope.data.parquet import read_parquet
from normscope.data.sources import SourceFile, column_advice
from normscope.errors import FileError

TextPieces = Iterator[str | None]
OnBytes = Callable[[bytes], None]
"""Callback that gets all bytes of a file, once and in order: for the checksum and for progress."""

CHUNK_BYTES = 2**17


def read_documents(source: SourceFile, on_bytes: OnBytes) -> TextPieces:
    """Yield the documents of a file. Text is kept unchanged, including line ends; a byte-order mark is dropped."""
    try:
        with source.path.open("rb") as file:
            if source.format == "jsonl":
                yield from _read_jsonl(source, file, on_bytes)
            elif source.format == "parquet":
                while chunk := file.read(CHUNK_BYTES):
                    on_bytes(chunk)
                yield from read_parquet(source)
            else:
                yield from _read_text(source, file, on_bytes)
    except FileError:
        raise
    except OSError as error:
        raise FileError(f"cannot read {source.name}: {error.strerror or error}\nfix: check its permissions") from error


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
        what, fix = "text", "this looks like a binary file; leave it out"
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
