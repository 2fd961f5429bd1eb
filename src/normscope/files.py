"""Writing files: whole or not at all."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from normscope.errors import FileError


def write_atomically(path: str | Path, text: str) -> None:
    """Write a text file in one step: whoever reads it sees the old one or the new one, never a half.

    The text goes to a temporary file in the same folder first, which then takes the place of the old one.
    """
    with AtomicFile(path) as file:
        file.write(text.encode())


class AtomicFile:
    """A file that is written bit by bit, and takes its place in one step when the `with` block ends well.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "numbers.bin"
    ...     with AtomicFile(path) as file:
    ...         file.write(bytes([1, 2]))
    ...         file.write(bytes([3]))
    ...         there_too_early = path.exists()
    ...     list(path.read_bytes()), there_too_early
    ([1, 2, 3], False)
    """

    def __init__(self, path: str | Path) -> None:
        self.path = path
        self._target = Path(path).resolve()  # a link stays a link, and the file it points at is the one that changes
        self._temporary = self._target.with_name(f".{self._target.name}.{secrets.token_hex(4)}.part")
        self._file: BinaryIO

    def __enter__(self) -> Self:
        if self._target.is_dir():
            raise FileError(f"cannot write {self.path}: it is a folder\nfix: name a file in it")
        if not self._target.parent.is_dir():
            raise FileError(
                f"cannot write {self.path}: there is no folder {self._target.parent}\nfix: make the folder first"
            )
        with self._explained():
            self._file = self._temporary.open("xb")
        return self

    def write(self, data: bytes | memoryview) -> None:
        with self._explained():
            self._file.write(data)

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        try:
            with self._explained() if kind is None else suppress(OSError):  # the first fault is the one to tell
                with self._file:
                    self._file.flush()
                    os.fsync(self._file.fileno())  # the bytes before the name: a power cut must not leave an empty file
                if kind is None:
                    self._temporary.replace(self._target)
        finally:
            with suppress(OSError):  # after a success it is gone already
                self._temporary.unlink()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except PermissionError as error:
            raise FileError(
                f"cannot write {self.path}: {self._target.parent} is read-only here\nfix: choose another folder"
            ) from error
        except OSError as error:
            raise FileError(f"cannot write {self.path}: {error.strerror or error}") from error


def make_folder(folder: str | Path) -> Path:
    """Make a folder and those above it; one that is there is welcome."""
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(
            f"cannot make the folder {folder}: {error.strerror or error}\nfix: choose another place for it"
        ) from error
    return folder
