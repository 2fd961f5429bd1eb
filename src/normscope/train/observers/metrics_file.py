"""metrics.jsonl: everything that happened in a run, one line an event."""

import dataclasses
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, get_type_hints

import msgspec

from normscope.checks import is_whole, plain
from normscope.errors import ConfigError, FileError
from normscope.files import AtomicFile, cannot_write, open_regular
from normscope.json_files import MIB, convert, parse_json
from normscope.train.events import Event

LONGEST_LINE = 16 * MIB
MOST_BYTES = 2048 * MIB
_FIX = "remove the line; the run itself does not need it"


class MetricsFile:
    """Writes each event as a line of JSON, at once.

    A line is `{"kind": ..., "step": ..., ...}` with the fields of the event. Numbers that are not finite become null,
    for JSON has no NaN.

    Args:
        path: the file; what is in it stays, but for a last line that was never finished.

    >>> import tempfile
    >>> from normscope.train.events import Noticed
    >>> path = Path(tempfile.mkdtemp()) / "metrics.jsonl"
    >>> file = MetricsFile(path)
    >>> file.see(Noticed(3, "the disk is nearly full"))
    >>> file.close()
    >>> read_metrics(path)
    [{'kind': 'notice', 'step': 3, 'text': 'the disk is nearly full'}]
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            # Without a buffer a line is one write: a killed process leaves whole lines, or one that is torn.
            self._file = self.path.open("a+b", buffering=0)
        except OSError as error:
            raise cannot_write(self.path, error) from error
        self.cut()

    def see(self, event: Event) -> None:
        line = memoryview((json.dumps(event_to_json(event), allow_nan=False) + "\n").encode())
        try:
            while line:  # a nearly full disk takes a part, and refuses the rest
                line = line[self._file.write(line) :]
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def cut(self, keep_bytes: int | None = None) -> None:
        """Keep the lines that end within so many bytes; None keeps all that are whole.

        What came after the checkpoint from which a run goes on happened in a future that is gone.
        """
        if keep_bytes is not None and not is_whole(keep_bytes, least=0):
            raise ConfigError(f"keep_bytes={keep_bytes!r} must be a whole number, zero or more")
        try:
            self._file.truncate(self.path.read_bytes().rfind(b"\n", 0, keep_bytes) + 1)
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
        with AtomicFile(self.path) as file:
            file.write(os.pread(self._file.fileno(), length, 0))
        self._file.close()
        self._file = self.path.open("a+b", buffering=0)

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

    >>> from normscope.train.events import Validated
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
    if not Path(path).exists():
        raise FileError(f"there is no {path}\nfix: name the folder of a run that has begun")
    with open_regular(path) as file:
        return [_parse(line, path, number) for number, line in enumerate(_lines(file, path), 1)]


def _lines(file: BinaryIO, path: str | Path) -> Iterator[bytes]:
    """The lines that have an end, without it."""
    try:
        while line := file.readline(LONGEST_LINE):
            if line.endswith(b"\n"):
                yield line[:-1]
            elif len(line) == LONGEST_LINE or file.tell() > MOST_BYTES:
                raise FileError(f"cannot read {path}: it is too large, or has a line of more than {LONGEST_LINE} bytes")
    except OSError as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"cannot read {path}: {error.strerror or error}") from error


def _parse(line: bytes, path: str | Path, number: int) -> dict[str, Any]:
    name = f"line {number} of {path}"
    event = parse_json(line, dict[str, Any], name=name, fix=_FIX, any_text=True)
    if not (isinstance(event.get("kind"), str) and is_whole(event.get("step"), least=0)):
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
    value = plain(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value
