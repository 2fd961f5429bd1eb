"""Follow metrics.jsonl while it is written: read the events that are new since the last time."""

import os
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from normscope.runs.events import METRICS_FORMAT
from normscope.runs.metrics_file import EventParser, complete_lines
from normscope.storage.json_files import MIB
from normscope.storage.safe_folder import SafeFolder

MAX_BYTES = 4 * MIB
"""Most that is read at a time."""


class MetricsPosition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a reader of metrics.jsonl stopped.

    A resumed run drops the events after its checkpoint and writes others. The checksum of the last line detects that
    the lines read before were replaced.

    Args:
        bytes: Number of bytes read.
        crc32: Checksum of the last line read, as in the file.
        format: Format of the events there.
    """

    bytes: Annotated[int, Meta(ge=0, lt=2**53)] = 0
    crc32: Annotated[str, Meta(max_length=8)] = ""
    format: Annotated[int, Meta(ge=0, lt=2**31)] = METRICS_FORMAT.version


class NewMetrics(NamedTuple):
    """The events after a position.

    Args:
        events: The events, in order.
        position: Where to continue.
        restarted: Whether earlier events are no longer in the file: these events replace them all.
        complete: Whether the end of the file was reached.
    """

    events: list[dict[str, Any]]
    position: MetricsPosition
    restarted: bool
    complete: bool


def read_new_metrics(
    path: str | Path, position: MetricsPosition | None = None, max_bytes: int = MAX_BYTES
) -> NewMetrics:
    """Read the events after a position, up to about `max_bytes` at a time.

    An incomplete last line is left for the next time; a file that does not exist has no events yet.

    >>> import tempfile
    >>> from normscope.runs.events import NoticeEvent
    >>> from normscope.runs.metrics_file import MetricsFile
    >>> path = Path(tempfile.mkdtemp()) / "metrics.jsonl"
    >>> file = MetricsFile(path)
    >>> file.on_event(NoticeEvent(1, "one"))
    >>> first = read_new_metrics(path)
    >>> file.on_event(NoticeEvent(2, "two"))
    >>> [event["text"] for event in read_new_metrics(path, first.position).events]
    ['two']
    >>> file.close()
    """
    path, position = Path(path), MetricsPosition() if position is None else position
    folder = SafeFolder(path.parent)
    if not folder.has(path.name):
        return NewMetrics([], MetricsPosition(), position.bytes > 0, True)
    with folder.open(path.name) as file:
        restarted = position.bytes > 0 and not _is_after(file, position)
        start = MetricsPosition() if restarted else position
        file.seek(start.bytes)
        parser, events, read, last = EventParser(start.format), list[dict[str, Any]](), start.bytes, b""
        complete = True
        for line in complete_lines(file, path):
            events.append(parser.parse(line, f"the line at byte {read} of {path}"))
            read, last = read + len(line) + 1, line
            if read - start.bytes >= max_bytes:
                complete = read >= os.fstat(file.fileno()).st_size
                break
    crc32 = _crc32(last).decode() if last else start.crc32
    return NewMetrics(events, MetricsPosition(read, crc32, parser.version), restarted, complete)


def _is_after(file: Any, position: MetricsPosition) -> bool:
    """Whether the line that ends at this position has this checksum."""
    ending = f'{position.crc32}"}}\n'.encode()
    file.seek(max(0, position.bytes - len(ending)))
    return bool(file.read(len(ending)) == ending)


def _crc32(line: bytes) -> bytes:
    return line[-10:-2]
