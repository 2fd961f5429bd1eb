"""metrics.jsonl: everything that happened in a run, one line an event."""

import dataclasses
import hashlib
import json
import math
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, get_type_hints

import msgspec

from normscope.checks import is_integer, to_python_number
from normscope.errors import CheckpointError, ConfigError, FileError
from normscope.runs.events import Event
from normscope.storage.files import cannot_write
from normscope.storage.json_files import MIB, convert, parse_json
from normscope.storage.safe_folder import OwnFolder

LONGEST_LINE = 16 * MIB
MOST_BYTES = 2048 * MIB
_FIX = "put the file back as it was"
_CHECKSUM = b', "crc32": "'


class MetricsFile:
    """Writes each event as a line of JSON, at once.

    A line is `{"kind": ..., "step": ..., ..., "crc32": ...}` with the fields of the event and a checksum of the line.
    Numbers that are not finite become null, for JSON has no NaN.

    Args:
        path: the file; what is in it stays, but for a last line that was never finished.

    >>> import tempfile
    >>> from normscope.runs.events import Noticed
    >>> path = Path(tempfile.mkdtemp()) / "metrics.jsonl"
    >>> file = MetricsFile(path)
    >>> file.see(Noticed(3, "the disk is nearly full"))
    >>> file.close()
    >>> read_metrics(path)
    [{'kind': 'notice', 'step': 3, 'text': 'the disk is nearly full'}]
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not self.path.parent.is_dir():
            raise cannot_write(self.path, FileNotFoundError(2, "No such file or directory"))
        self._file = OwnFolder(self.path.parent).open_to_append(self.path.name)
        try:
            self.cut()
        except FileError:
            self._file.close()
            raise

    def see(self, event: Event) -> None:
        line = memoryview(_with_checksum(json.dumps(event_to_json(event), allow_nan=False).encode()))
        try:
            while line:  # a nearly full disk takes a part, and refuses the rest
                line = line[self._file.write(line) :]
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def cut(self, keep_bytes: int | None = None) -> None:
        """Keep the lines that end within so many bytes; None keeps all that are whole.

        What came after the checkpoint from which a run goes on happened in a future that is gone.
        """
        if keep_bytes is not None and not is_integer(keep_bytes, least=0):
            raise ConfigError(f"keep_bytes={keep_bytes!r} must be a whole number, zero or more")
        try:
            size = os.fstat(self._file.fileno()).st_size
            self._file.truncate(_last_end(self.path, min(size, size if keep_bytes is None else keep_bytes)))
        except FileError:
            raise
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def size(self) -> int:
        """How many bytes were written so far. A file that was deleted or replaced since is put back as it was."""
        try:
            ours = os.fstat(self._file.fileno())
            if not self._is_in_place(ours):
                self._put_back(ours.st_size)
        except FileError:
            raise
        except OSError as error:
            raise cannot_write(self.path, error) from error
        return ours.st_size

    def _is_in_place(self, ours: os.stat_result) -> bool:
        try:
            return os.path.samestat(ours, os.lstat(self.path))
        except FileNotFoundError:
            return False

    def _put_back(self, length: int) -> None:
        """The file lost its name, but as long as it is open its content is there."""
        if not self.path.parent.is_dir():
            raise FileError(
                f"{self.path.parent} was deleted while the run was at work, and nothing more can be saved there\n"
                f"fix: put it back if there is a copy, and resume; else start a new run"
            )
        content = os.pread(self._file.fileno(), length, 0)
        self._file.close()
        folder = OwnFolder(self.path.parent)
        folder.write(self.path.name, content)
        self._file = folder.open_to_append(self.path.name)

    def checksum(self, count: int) -> str:
        """Of the first so many bytes: a checkpoint keeps it, to tell later whether they are still the same."""
        return _checksum(self.path, count)

    def check(self, count: int, sha256: str) -> None:
        """Refuse a file whose first bytes aren't those that a checkpoint was saved after."""
        check_metrics(self.path, count, sha256)

    def sync(self) -> None:
        """Bring all lines so far to the disk, where a power cut does not reach them."""
        self.size()
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def close(self) -> None:
        self._file.close()


def event_to_json(event: Event) -> dict[str, Any]:
    """The event as plain values: its kind and step first.

    >>> from normscope.runs.events import Validated
    >>> event_to_json(Validated(step=2, loss=float("nan"), bits_per_byte=1.5, best=False, seconds=0.1))
    {'kind': 'validation', 'step': 2, 'loss': None, 'bits_per_byte': 1.5, 'best': False, 'seconds': 0.1}
    """
    fields = dataclasses.asdict(event)
    return {"kind": event.kind, "step": fields.pop("step"), **{name: _plain(value) for name, value in fields.items()}}


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """The events of a run, in order.

    A last line without an end was torn when the process was killed, and is passed over; any other line that is not
    an event is refused by its number.
    """
    path = Path(path)
    if not OwnFolder(path.parent).has(path.name):
        raise FileError(f"there is no {path}\nfix: name the folder of a run that has begun")
    with OwnFolder(path.parent).open(path.name) as file:
        if os.fstat(file.fileno()).st_size > MOST_BYTES:
            raise FileError(f"cannot read {path}: it has more than {MOST_BYTES:,} bytes\nfix: {_FIX}")
        return [_parse(line, path, number) for number, line in enumerate(_lines(file, path), 1)]


def check_metrics(path: Path, count: int, sha256: str) -> None:
    """Refuse a metrics.jsonl whose first so many bytes do not have this checksum."""
    if _checksum(path, count) != sha256:
        raise CheckpointError(
            f"{path} was altered: its first {count} bytes are not those that were there when the checkpoint was saved\n"
            f"fix: put it back as it was, or begin anew with --from-step 0"
        )


def _checksum(path: Path, count: int) -> str:
    digest = hashlib.sha256()
    if OwnFolder(path.parent).has(path.name):
        with OwnFolder(path.parent).open(path.name) as file:
            while count > 0 and (data := file.read(min(count, MIB))):
                digest.update(data)
                count -= len(data)
    return digest.hexdigest() if count == 0 else ""


def _with_checksum(data: bytes) -> bytes:
    """A line of JSON, an object, with a checksum of itself as its last field."""
    return data[:-1] + _CHECKSUM + b'%08x"}\n' % zlib.crc32(data)


def _last_end(path: Path, size: int) -> int:
    """Where the last line ends that is whole within so many bytes of a file."""
    first = max(0, size - LONGEST_LINE)  # a hole of terabytes would be searched for hours
    with OwnFolder(path.parent).open(path.name) as file:
        while size > first:
            start = max(first, size - MIB)
            file.seek(start)
            end = file.read(size - start).rfind(b"\n")
            if end >= 0:
                return start + end + 1
            size = start
    if first:
        raise _too_long(path)
    return 0


def _too_long(path: str | Path) -> FileError:
    return FileError(f"cannot read {path}: it has a line of more than {LONGEST_LINE:,} bytes\nfix: {_FIX}")


def _lines(file: BinaryIO, path: str | Path) -> Iterator[bytes]:
    """The lines that have an end, without it."""
    try:
        while line := file.readline(LONGEST_LINE):
            if line.endswith(b"\n"):
                yield line[:-1]
            elif len(line) == LONGEST_LINE:
                raise _too_long(path)
            elif _CHECKSUM in line and len(line.rpartition(_CHECKSUM)[2]) > len('00000000"}'):
                raise FileError(f"{path} is damaged: its last line goes on after its end\nfix: {_FIX}")
    except OSError as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"cannot read {path}: {error.strerror or error}") from error


def _parse(line: bytes, path: str | Path, number: int) -> dict[str, Any]:
    name = f"line {number} of {path}"
    text = line.rpartition(_CHECKSUM)[0] + b"}"
    if line + b"\n" != _with_checksum(text):
        raise FileError(f"{name} is damaged: its checksum is missing, or not the one it was written with\nfix: {_FIX}")
    event = parse_json(text, dict[str, Any], name=name, fix=_FIX, any_text=True)
    if not (isinstance(event.get("kind"), str) and is_integer(event.get("step"), least=0)):
        shown = line[:60].decode(errors="replace")
        raise FileError(f"{name} is not an event: {shown!r}\nfix: {_FIX}")
    schema = _SCHEMAS.get(event["kind"])
    if schema is not None:
        convert(event, schema, name=name, fix=_FIX)
    return event


def _schema(event: type[Event]) -> Any:
    """The types of an event's fields in the file, where a number may be null; readers do without what is missing."""
    hints = get_type_hints(event)
    fields = [(field.name, hints[field.name] | None, None) for field in dataclasses.fields(event)]
    return msgspec.defstruct(event.__name__, fields)


_SCHEMAS = {event.kind: _schema(event) for event in Event.__subclasses__()}


def _plain(value: Any) -> Any:
    """The value as JSON has it; null for a number that is not finite."""
    if isinstance(value, dict):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    value = to_python_number(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value
