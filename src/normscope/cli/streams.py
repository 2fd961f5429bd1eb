"""Guarded standard streams: write errors never cause a traceback, and untrusted text cannot control the terminal.

Printed text may come from untrusted files: a name, a sample, a string of a tokenizer. On a terminal, control characters
are therefore replaced here. rich writes its own escape sequences through `rich_proxied_file`.
"""

import errno
import io
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

from normscope.render.formatting import printable

_RICH_SEQUENCES = re.compile(r"\x1b\[(?:[0-9;]*m|[0-9]*[ABCDGJK]|\?25[lh]|H)|\r")
"""The escape sequences rich uses: colors, cursor movement, erasing. Not titles, clipboard access, reports or modes."""


class GuardedStream(io.TextIOBase):
    """A text stream that records its first failure and discards everything after it.

    Only a broken pipe is raised, once, so that the writer stops.

    Args:
        stream: the underlying stream; None if the process was started without it.
        for_errors: never raise, and replace control characters even if the stream is not a terminal.
    """

    def __init__(self, stream: TextIO | None, *, for_errors: bool = False) -> None:
        self._stream, self._for_errors = stream, for_errors
        self.failure: OSError | None = None
        if isinstance(stream, io.TextIOWrapper):
            with suppress(OSError, ValueError):  # it flushes first; a broken stream is reported later
                stream.reconfigure(errors="replace")  # unencodable characters become '?'

    def write(self, text: str) -> int:
        self._write(printable(text, keep="\n\t") if self._for_errors or self.isatty() else text)
        return len(text)

    def write_styled(self, text: str) -> int:
        """Write text with colors and cursor movement; replace other escape sequences."""
        parts = _RICH_SEQUENCES.split(text)
        marks = [*_RICH_SEQUENCES.findall(text), ""]
        self._write("".join(printable(part, keep="\n\t") + mark for part, mark in zip(parts, marks, strict=True)))
        return len(text)

    def _write(self, text: str) -> None:
        if self._stream is None:
            self._fail(OSError(errno.EBADF, "stream is closed"))
        elif self.failure is None:
            with self._guard():
                self._stream.write(text)

    def flush(self) -> None:
        if self._stream is not None and self.failure is None:
            with self._guard():
                self._stream.flush()

    @contextmanager
    def _guard(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._fail(error)
            if isinstance(error, BrokenPipeError) and not self._for_errors:
                raise
        except ValueError:  # the stream was closed by this process
            self._fail(OSError(errno.EBADF, "stream is closed"))

    def _fail(self, error: OSError) -> None:
        self.failure = self.failure or error
        with suppress(OSError, ValueError):
            # Python flushes the rest at exit, which must not fail again.
            devnull = os.open(os.devnull, os.O_WRONLY)
            os.dup2(devnull, self.fileno())
            os.close(devnull)

    def isatty(self) -> bool:
        return self._stream is not None and self.failure is None and not self._stream.closed and self._stream.isatty()

    def fileno(self) -> int:
        if self._stream is None:
            raise io.UnsupportedOperation("fileno")
        return self._stream.fileno()

    def writable(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return getattr(self._stream, "encoding", None) or "utf-8"

    @property
    def rich_proxied_file(self) -> "StyledStream":
        return StyledStream(self)


class StyledStream:
    """The stream that rich writes its escape sequences to: the guarded one, but for `write`."""

    def __init__(self, guarded: GuardedStream) -> None:
        self._guarded = guarded

    def write(self, text: str) -> int:
        return self._guarded.write_styled(text) if self._guarded.isatty() else self._guarded.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._guarded, name)


@contextmanager
def guarded_streams() -> Iterator[GuardedStream]:
    """Guard sys.stdout and sys.stderr, and replace a missing sys.stdin by an empty one; yields the guarded stdout."""
    before = sys.stdin, sys.stdout, sys.stderr
    if None in before:
        _open_missing_descriptors()
    out, errors = GuardedStream(before[1]), GuardedStream(before[2], for_errors=True)
    nothing = None
    if before[0] is None:
        nothing = sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115 (closed below)
    sys.stdout, sys.stderr = cast(TextIO, out), cast(TextIO, errors)
    try:
        yield out
    finally:
        sys.stdin, sys.stdout, sys.stderr = before
        if nothing is not None:
            nothing.close()


def _open_missing_descriptors() -> None:
    """Open missing descriptors 0 to 2, so that no other file gets their number and receives what is printed."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number: this one
