"""Files to documents, in pieces of text: a file may be larger than the memory.

A reader gives texts and Nones. The texts up to a None are one document, in pieces; the None says that it ends there. A
text file is one document, each line of a .jsonl and each row of a .parquet is one.
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
"""Is shown every byte of a file, once and in order: for its checksum, and to see how far the reading has come."""

CHUNK_BYTES = 2**17


def read_documents(source: SourceFile, watch: OnBytes) -> TextPieces:
    """The documents of a file. The text is taken as it is, line ends too; only a byte-order mark is dropped."""
    try:
        with source.path.open("rb") as file:
            if source.format == "jsonl":
                yield from _read_jsonl(source, file, watch)
            elif source.format == "parquet":
                while chunk := file.read(CHUNK_BYTES):
                    watch(chunk)
                yield from read_parquet(source)
            else:
                yield from _read_text(source, file, watch)
    except FileError:
        raise
    except OSError as error:
        raise FileError(
            f"cannot read {source.name}: {error.strerror or error}\nfix: check that you may read it"
        ) from error


def _read_text(source: SourceFile, file: BinaryIO, watch: OnBytes) -> TextPieces:
    decoder = codecs.getincrementaldecoder("utf-8")()
    offset, lines, first = 0, 0, True
    while True:
        chunk = file.read(CHUNK_BYTES)
        watch(chunk)
        pending = len(decoder.getstate()[0])  # of a character that the chunk before has cut
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
    place, data = error.start, error.object
    line = lines + data[:place].count(b"\n") + 1
    wide = offset == 0 and data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    encoding = "UTF-16" if wide else "WINDOWS-1252"
    fix = f"iconv -f {encoding} -t UTF-8 {source.name} > utf8.txt, with the encoding that it really has"
    what = "UTF-8"
    if _is_binary(data) and not wide:
        what, fix = "text", "it has bytes that no text has, as pictures and programs do; leave it out"
    return FileError(
        f"{source.name} is not {what}: byte 0x{data[place]:02X} at offset {offset + place}, in line {line}, "
        f"is no part of a character\nfix: {fix}"
    )


def _read_jsonl(source: SourceFile, file: BinaryIO, watch: OnBytes) -> TextPieces:
    for number, line in enumerate(file, start=1):
        watch(line)
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        if line.strip():
            yield _text_of_line(source, number, line)
            yield None


def _text_of_line(source: SourceFile, number: int, line: bytes) -> str:
    try:
        row = json.loads(line.decode())
    except UnicodeDecodeError as error:
        problem = f"byte 0x{line[error.start]:02X} at place {error.start} is not UTF-8"
        raise _bad_line(source, number, problem, "write the file as UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise _bad_line(source, number, f"it is not JSON: {error}", "mend or delete the line") from None
    if not isinstance(row, dict):
        fix = f'write each line as an object: {{"{source.column}": "..."}}'
        raise _bad_line(source, number, f"it is {type(row).__name__}, not an object", fix)
    texts = [name for name, value in row.items() if isinstance(value, str)]
    if source.column not in row:
        names = ", ".join(map(repr, row)) or "nothing"
        raise _bad_line(source, number, f"it has no {source.column!r}, but {names}", column_advice(texts))
    text = row[source.column]
    if not isinstance(text, str):
        problem = f"{source.column!r} is {json.dumps(text)[:40]}, not a text"
        raise _bad_line(source, number, problem, f"{column_advice(texts)}, or leave the line out")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        problem = f"the text has half a character at place {error.start}: {text[error.start]!a}"
        raise _bad_line(source, number, problem, "write both halves of the pair") from None
    return text


def _is_binary(data: bytes) -> bool:
    """Whether bytes are a picture or the like: text in any encoding of one byte a letter has hardly any controls."""
    controls = sum(byte < 32 and byte not in b"\t\n\f\r" for byte in data)
    return b"\0" in data or controls > len(data) / 50


def _bad_line(source: SourceFile, number: int, problem: str, fix: str) -> FileError:
    return FileError(f"{source.name}, line {number}: {problem}\nfix: {fix}")
