"""Atomic writes, reads of regular files only, and error messages for both."""

import errno
import hashlib
import json
import os
import re
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, Self

from normscope.errors import FileError


def write_atomically(path: str | Path, text: str) -> None:
    """Write a text file atomically: readers see the old or the new content, never a part.

    The text is written to a temporary file in the same folder, which then replaces the old one.
    """
    with AtomicFile(path) as file:
        file.write(text.encode(errors="replace"))  # a report may contain a file name that is not UTF-8


class AtomicFile:
    """A file that is written piece by piece and replaces its target when the `with` block succeeds.

    Args:
        path: Target path. A symbolic link is followed, unless `folder` is given.
        folder: Descriptor of an open folder; `path` is then a name in it.
        shown: Path to show in errors.

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

    def __init__(self, path: str | Path, *, folder: int | None = None, shown: Path | None = None) -> None:
        self.path = shown or path
        self._folder = folder
        # A symbolic link stays a link: the file it points to is replaced.
        self._target = Path(path).resolve() if folder is None and shown is None else Path(path)
        self._temporary = self._target.with_name(f".{self._target.name}.{secrets.token_hex(8)}.part")
        self._file: BinaryIO

    def __enter__(self) -> Self:
        if self._folder is None and self._target.is_dir():
            raise FileError(f"cannot write {self.path}: it is a folder\nfix: give the path of a file inside it")
        with write_errors(self.path):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
            self._file = os.fdopen(os.open(self._temporary, flags, 0o666, dir_fd=self._folder), "wb")
        return self

    def write(self, data: bytes | memoryview) -> None:
        with write_errors(self.path):
            self._file.write(data)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            with write_errors(self.path) if kind is None else suppress(OSError):  # report the first error
                with self._file:
                    self._file.flush()
                    os.fsync(self._file.fileno())  # before the rename: a power cut must not leave an empty file
                if kind is None:
                    os.replace(self._temporary, self._target, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        finally:
            with suppress(OSError):  # already gone after a success
                os.unlink(self._temporary, dir_fd=self._folder)


def is_partial(name: str) -> bool:
    """Whether this is the name of a temporary file of an interrupted `AtomicFile`."""
    return re.fullmatch(r"\..+\.[0-9a-f]{16}\.part", name) is not None


def write_error(path: str | Path, error: Exception) -> FileError:
    """The FileError for a failed write, with a fix; `error` may be a library's exception without an errno."""
    code, message = getattr(error, "errno", None), str(getattr(error, "strerror", None) or error)
    folder = Path(path).resolve().parent
    if code in (errno.EACCES, errno.EPERM, errno.EROFS) or "ermission denied" in message:
        reason = f"{folder} is read-only\nfix: choose another folder"
    elif code == errno.ENOSPC or "No space left" in message:
        reason = "the disk is full\nfix: free some space; earlier files are intact"
    elif not folder.is_dir():
        reason = f"the folder {folder} does not exist\nfix: create it first"
    else:
        reason = message
    return FileError(f"cannot write {path}: {reason}")


@contextmanager
def os_errors(problem: str, fix: str = "") -> Iterator[None]:
    """Context manager that raises OSErrors as FileErrors: `problem: reason`, and how to fix it."""
    try:
        yield
    except FileError:
        raise
    except OSError as error:
        message = f"{problem}: {error.strerror or error}"
        raise FileError(f"{message}\nfix: {fix}" if fix else message) from error


@contextmanager
def write_errors(path: str | Path) -> Iterator[None]:
    """Context manager that raises an OSError as the FileError of a failed write."""
    try:
        yield
    except FileError:
        raise
    except OSError as error:
        raise write_error(path, error) from error


def make_folder(folder: str | Path) -> Path:
    """Create a folder and its parents; an existing folder is fine."""
    folder = Path(folder)
    problem = f"cannot create the folder {folder}"
    with os_errors(problem, "choose another location"):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except FileExistsError as error:
            raise FileError(f"{problem}: a file has this name\nfix: choose another name") from error
    return folder


def open_regular(
    path: str | Path, *, folder: int | None = None, follow: bool = True, shown: Path | None = None
) -> BufferedReader:
    """Open a regular file for reading. Raises for a folder, device, pipe or socket, and never blocks.

    Args:
        path: The file.
        folder: Descriptor of the folder that a relative path starts from.
        follow: Whether the path itself may be a symbolic link.
        shown: Path to show in errors.
    """
    shown = shown or Path(path)
    # O_NONBLOCK: opening a pipe must not block. It has no effect on regular files.
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
    flags |= 0 if follow else getattr(os, "O_NOFOLLOW", 0)
    try:
        number = os.open(path, flags, dir_fd=folder)
    except FileNotFoundError as error:
        raise FileError(f"{shown} does not exist") from error
    except ValueError as error:  # a NUL in the name
        raise FileError(f"cannot read {shown}: {error}") from error
    except OSError as error:
        raise FileError(f"cannot read {shown}: {error.strerror or error}") from error
    mode = os.fstat(number).st_mode
    if not stat.S_ISREG(mode):
        os.close(number)
        raise FileError(f"cannot read {shown}: it is {_kind_of_file(mode)}, not a regular file")
    return os.fdopen(number, "rb")


def read_limited(file: BinaryIO, name: str | Path, max_bytes: int) -> bytes:
    """Read an open file; raises if it is larger than `max_bytes`."""
    with os_errors(f"cannot read {name}"):
        size = os.fstat(file.fileno()).st_size
        data = file.read(size) if size <= max_bytes else b""
    if size > max_bytes:
        raise FileError(f"cannot read {name}: it has {size:,} bytes, more than the limit of {max_bytes:,}")
    return data


def _kind_of_file(mode: int) -> str:
    kinds = {
        stat.S_IFDIR: "a folder",
        stat.S_IFIFO: "a pipe",
        stat.S_IFSOCK: "a socket",
        stat.S_IFLNK: "a symbolic link",
    }
    return kinds.get(stat.S_IFMT(mode), "a device")


def with_checksum(content: Mapping[str, Any]) -> dict[str, Any]:
    """Add a checksum to the content of a JSON file.

    >>> has_valid_checksum(with_checksum({"step": 5})), has_valid_checksum({**with_checksum({"step": 5}), "step": 4})
    (True, False)
    """
    return {**content, "checksum": _checksum(content)}


def has_valid_checksum(content: Mapping[str, Any]) -> bool:
    """Whether content written by `with_checksum` is unchanged."""
    rest = {name: value for name, value in content.items() if name != "checksum"}
    return bool(content.get("checksum") == _checksum(rest))


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
