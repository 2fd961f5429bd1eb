"""metrics.jsonl: the events of a run, one JSON object per line."""

import hashlib
import json
import math
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from normscope.checks import is_integer, to_python_number
from normscope.errors import CheckpointError, ConfigError, FileError
from normscope.runs.events import METRICS_FORMAT, Observer, RunEvent, StartedEvent
from normscope.storage.files import os_errors, write_error, write_errors
from normscope.storage.json_files import MIB, JsonSource
from normscope.storage.safe_folder import SafeFolder

MAX_LINE_BYTES = 16 * MIB
MAX_FILE_BYTES = 2048 * MIB
_FIX = "restore the file from a copy"
_CHECKSUM = b', "crc32": "'


class MetricsFile(Observer):
    """Observer that appends each event to a file, unbuffered.

    A line is `{"kind": ..., "step": ..., ..., "crc32": ...}`: the fields of the event and a checksum of the line. NaN
    and Inf become null.

    Args:
        path: The file. Existing lines are kept, except for an incomplete last line.

    >>> import tempfile
    >>> from normscope.runs.events import NoticeEvent
    >>> path = Path(tempfile.mkdtemp()) / "metrics.jsonl"
    >>> file = MetricsFile(path)
    >>> file.on_event(NoticeEvent(3, "the disk is nearly full"))
    >>> file.close()
    >>> read_metrics(path)
    [{'kind': 'notice', 'step': 3, 'text': 'the disk is nearly full'}]
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not self.path.parent.is_dir():
            raise write_error(self.path, FileNotFoundError(2, "No such file or directory"))
        self._file = SafeFolder(self.path.parent).open_append(self.path.name)
        try:
            self.truncate()
        except FileError:
            self._file.close()
            raise

    def on_event(self, event: RunEvent) -> None:
        line = memoryview(_with_checksum(json.dumps(event_to_json(event), allow_nan=False).encode()))
        with write_errors(self.path):
            while line:  # a nearly full disk may accept only a part
                line = line[self._file.write(line) :]

    def truncate(self, keep_bytes: int | None = None) -> None:
        """Keep the complete lines within the first `keep_bytes` bytes; None keeps all complete lines."""
        if keep_bytes is not None and not is_integer(keep_bytes, least=0):
            raise ConfigError(f"keep_bytes={keep_bytes!r} must be a non-negative integer")
        with write_errors(self.path):
            size = os.fstat(self._file.fileno()).st_size
            self._file.truncate(_last_end(self.path, min(size, size if keep_bytes is None else keep_bytes)))

    def size(self) -> int:
        """Size in bytes. If the file was deleted or replaced, it is restored first."""
        with write_errors(self.path):
            open_file = os.fstat(self._file.fileno())
            if not self._is_in_place(open_file):
                self._restore(open_file.st_size)
            return open_file.st_size

    def _is_in_place(self, open_file: os.stat_result) -> bool:
        try:
            return os.path.samestat(open_file, os.lstat(self.path))
        except FileNotFoundError:
            return False

    def _restore(self, length: int) -> None:
        """Write the file again: while it is open, its content is still readable."""
        if not self.path.parent.is_dir():
            raise FileError(
                f"{self.path.parent} was deleted during the run\n"
                f"fix: restore it from a copy and resume, or start a new run"
            )
        content = os.pread(self._file.fileno(), length, 0)
        self._file.close()
        folder = SafeFolder(self.path.parent)
        folder.write(self.path.name, content)
        self._file = folder.open_append(self.path.name)

    def sync(self) -> None:
        """Flush all lines to disk (fsync)."""
        self.size()
        with write_errors(self.path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def event_to_json(event: RunEvent) -> dict[str, Any]:
    """Convert an event to JSON values, kind and step first.

    >>> from normscope.runs.events import ValidationEvent
    >>> event_to_json(ValidationEvent(step=2, loss=float("nan"), bits_per_byte=1.5, best=False, seconds=0.1))
    {'kind': 'validation', 'step': 2, 'loss': None, 'bits_per_byte': 1.5, 'best': False, 'seconds': 0.1}
    """
    return {"kind": event.kind, **{name: _plain(value) for name, value in msgspec.structs.asdict(event).items()}}


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """Read the events of a run, in order.

    An incomplete last line (the process was killed) is skipped. Any other invalid line is an error with its number.
    """
    path = Path(path)
    if not SafeFolder(path.parent).has(path.name):
        raise FileError(f"{path} does not exist\nfix: pass the folder of a run that has started")
    with SafeFolder(path.parent).open(path.name) as file:
        if os.fstat(file.fileno()).st_size > MAX_FILE_BYTES:
            raise FileError(f"cannot read {path}: it has more than {MAX_FILE_BYTES:,} bytes\nfix: {_FIX}")
        parser = EventParser()
        lines = enumerate(complete_lines(file, path), 1)
        return [parser.parse(line, f"line {number} of {path}") for number, line in lines]


class EventParser:
    """Checks and parses the lines of a metrics.jsonl, in order.

    Args:
        version: Format of the lines before the next start event, which names its own.
    """

    def __init__(self, version: int = METRICS_FORMAT.version) -> None:
        self.version = version

    def parse(self, line: bytes, name: str) -> dict[str, Any]:
        """Parse a line; errors call it by this name."""
        source = JsonSource(name, _FIX)
        event = _parse(line, source)
        if event["kind"] == StartedEvent.kind:
            self.version = event.get("format", METRICS_FORMAT.version)
        if self.version != METRICS_FORMAT.version:
            event = source.migrate({**event, "format": self.version}, METRICS_FORMAT)
        if event["kind"] in _SCHEMAS:
            source.convert(event, _SCHEMAS[event["kind"]])
        return event


def check_metrics(path: Path, count: int, sha256: str) -> None:
    """Raise if the first `count` bytes of a metrics.jsonl changed since a checkpoint was saved."""
    if metrics_checksum(path, count) != sha256:
        raise CheckpointError(
            f"{path} is damaged: its first {count} bytes changed since the checkpoint was saved\n"
            f"fix: restore it from a copy. The checkpoints do not need it: `normscope sample {path.parent}` works, and "
            f"`normscope resume {path.parent} --from-step 0` trains from the start again"
        )


def metrics_checksum(path: Path, count: int) -> str:
    """SHA-256 of the first `count` bytes, to be stored in a checkpoint; empty if there are fewer."""
    digest = hashlib.sha256()
    if SafeFolder(path.parent).has(path.name):
        with SafeFolder(path.parent).open(path.name) as file:
            while count > 0 and (data := file.read(min(count, MIB))):
                digest.update(data)
                count -= len(data)
    return digest.hexdigest() if count == 0 else ""


def _with_checksum(data: bytes) -> bytes:
    """Add a checksum of the line as the last field of a JSON object."""
    return data[:-1] + _CHECKSUM + b'%08x"}\n' % zlib.crc32(data)


def _last_end(path: Path, size: int) -> int:
    """Offset of the end of the last complete line within the first `size` bytes."""
    first = max(0, size - MAX_LINE_BYTES)  # a sparse file of terabytes would take hours to search
    with SafeFolder(path.parent).open(path.name) as file:
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
    return FileError(f"cannot read {path}: it has a line of more than {MAX_LINE_BYTES:,} bytes\nfix: {_FIX}")


def complete_lines(file: BinaryIO, path: str | Path) -> Iterator[bytes]:
    """All complete lines, without the newline."""
    with os_errors(f"cannot read {path}"):
        while line := file.readline(MAX_LINE_BYTES):
            if line.endswith(b"\n"):
                yield line[:-1]
            elif len(line) == MAX_LINE_BYTES:
                raise _too_long(path)
            elif _CHECKSUM in line and len(line.rpartition(_CHECKSUM)[2]) > len('00000000"}'):
                raise FileError(f"{path} is damaged: trailing data after the last line\nfix: {_FIX}")


def _parse(line: bytes, source: JsonSource) -> dict[str, Any]:
    text = line.rpartition(_CHECKSUM)[0] + b"}"
    if line + b"\n" != _with_checksum(text):
        raise source.problem("is damaged: its checksum is missing or wrong")
    event = source.parse(text, dict[str, Any], allow_any_text=True)
    if not (isinstance(event.get("kind"), str) and is_integer(event.get("step"), least=0)):
        raise source.problem(f"is not an event: {line[:60].decode(errors='replace')!r}")
    return event


def _schema(event: type[RunEvent]) -> Any:
    """Schema of an event in the file: every field may be null or missing."""
    fields = [(field.name, field.type | None, None) for field in msgspec.structs.fields(event)]
    return msgspec.defstruct(event.__name__, fields)


_SCHEMAS = {event.kind: _schema(event) for event in RunEvent.__subclasses__()}


def _plain(value: Any) -> Any:
    """Convert a value to JSON; NaN and Inf become null."""
    if isinstance(value, dict):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    value = to_python_number(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value
