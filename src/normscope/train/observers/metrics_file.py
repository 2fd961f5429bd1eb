"""metrics.jsonl: everything that happened in a run, one line an event."""

import dataclasses
import json
import math
import os
from pathlib import Path
from typing import Any

from normscope.checks import is_whole, plain
from normscope.errors import ConfigError, FileError
from normscope.files import cannot_write
from normscope.train.events import Event


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
            self._file = self.path.open("ab", buffering=0)
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

    def sync(self) -> None:
        """Bring all lines so far to the disk, where a power cut does not reach them."""
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
    try:
        content = Path(path).read_bytes()
    except FileNotFoundError:
        raise FileError(f"there is no {path}\nfix: name the folder of a run that has begun") from None
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror or error}") from error
    *lines, _ = content.split(b"\n")  # after the last line's end comes nothing, or the torn one
    return [_parse(line, path, number) for number, line in enumerate(lines, 1)]


def _parse(line: bytes, path: str | Path, number: int) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except ValueError:
        event = None
    if not (isinstance(event, dict) and isinstance(event.get("kind"), str) and is_whole(event.get("step"), least=0)):
        raise FileError(
            f"line {number} of {path} is not an event: {line[:60].decode(errors='replace')!r}\n"
            f"fix: remove the line; the run itself does not need it"
        )
    return event


def _plain(value: Any) -> Any:
    """The value as JSON has it; null for a number that is not finite."""
    if isinstance(value, dict):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    value = plain(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value
