"""Standard output and standard error as every command has them: they never raise a traceback, and never obey a file.

What is printed may come from anyone's files: a name, a sample, a tokenizer's string. A terminal would obey the control
characters in it, so on a terminal they are replaced, here, whatever printed them. Rich's own sequences for colors and
cursor pass by another way, `rich_proxied_file`, which rich asks for.
"""

import errno
import io
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO, cast

from normscope.render.formatting import printable

_OWN_SEQUENCES = re.compile(r"\x1b\[(?:[0-9;]*m|[0-9]*[ABCDGJK]|\?25[lh]|H)|\r")
"""What rich writes by itself: colors, cursor movements, erased lines. Not titles, clipboards, reports or modes."""


class GuardedStream(io.TextIOBase):
    """A text stream that remembers its first failure, and from then on takes everything and writes nothing.

    Only a closed pipe is raised, once: whoever writes should stop, since nobody reads.

    Args:
        stream: what is written to; None if the process was started without it.
        for_errors: raise nothing, since nobody is left to tell, and replace control characters also where no terminal
            is written to: what is said there is for people.
    """

    def __init__(self, stream: TextIO | None, *, for_errors: bool = False) -> None:
        self._stream, self._for_errors = stream, for_errors
        self.failure: OSError | None = None
        if isinstance(stream, io.TextIOWrapper):
            with suppress(OSError, ValueError):  # it flushes first, and a stream that is broken is told of later
                stream.reconfigure(errors="replace")  # what the terminal's encoding lacks becomes '?'

    def write(self, text: str) -> int:
        self._write(printable(text, keep="\n\t") if self._for_errors or self.isatty() else text)
        return len(text)

    def write_styled(self, text: str) -> int:
        """Write with colors and cursor movements; other sequences are replaced."""
        parts = _OWN_SEQUENCES.split(text)
        marks = [*_OWN_SEQUENCES.findall(text), ""]
        self._write("".join(printable(part, keep="\n\t") + mark for part, mark in zip(parts, marks, strict=True)))
        return len(text)

    def _write(self, text: str) -> None:
        if self._stream is None:
            self._fail(OSError(errno.EBADF, "it is closed"))
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
        except ValueError:  # of a stream that was closed from inside
            self._fail(OSError(errno.EBADF, "it is closed"))

    def _fail(self, error: OSError) -> None:
        self.failure = self.failure or error
        with suppress(OSError, ValueError):
            # Python flushes what is left when it ends, and that must not fail in its turn.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)

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


class StyledStream(io.TextIOBase):
    """The way by which rich writes its own sequences."""

    def __init__(self, guarded: GuardedStream) -> None:
        self._guarded = guarded

    def write(self, text: str) -> int:
        write = self._guarded.write_styled if self._guarded.isatty() else self._guarded.write
        write(text)
        return len(text)

    def flush(self) -> None:
        self._guarded.flush()

    def isatty(self) -> bool:
        return self._guarded.isatty()

    def fileno(self) -> int:
        return self._guarded.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._guarded.encoding


@contextmanager
def guarded_streams() -> Iterator[GuardedStream]:
    """Guard sys.stdout, which is given, and sys.stderr; a sys.stdin that is not there becomes an empty one."""
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
    """Without this the next file that is opened would be number 1, and whoever prints would write into it."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free, which is this one
