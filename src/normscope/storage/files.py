"""Files: written whole or not at all, read only if they are regular files, and what to say where either fails."""

import errno
import hashlib
import json
import os
import re
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from normscope.errors import FileError


def write_atomically(path: str | Path, text: str) -> None:
    """Write a text file in one step: whoever reads it sees the old one or the new one, never a half.

    The text goes to a temporary file in the same folder first, which then takes the place of the old one.
    """
    with AtomicFile(path) as file:
        file.write(text.encode(errors="replace"))  # a page may name a file whose name is no text


class AtomicFile:
    """A file that is written bit by bit, and takes its place in one step when the `with` block ends well.

    Args:
        path: where it goes. A link there is followed, unless a folder is given.
        folder: the descriptor of an open folder; the path is then a name in it.
        shown: how the file is called in errors.

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
        # For a user a link stays a link, and the file it points at is the one that changes.
        self._target = Path(path).resolve() if folder is None and shown is None else Path(path)
        self._temporary = self._target.with_name(f".{self._target.name}.{secrets.token_hex(8)}.part")
        self._file: BinaryIO

    def __enter__(self) -> Self:
        if self._folder is None and self._target.is_dir():
            raise FileError(f"cannot write {self.path}: it is a folder\nfix: name a file in it")
        with self._explained():
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
            self._file = os.fdopen(os.open(self._temporary, flags, 0o666, dir_fd=self._folder), "wb")
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
                    os.replace(self._temporary, self._target, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        finally:
            with suppress(OSError):  # after a success it is gone already
                os.unlink(self._temporary, dir_fd=self._folder)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise cannot_write(self.path, error) from error


def is_partial(name: str) -> bool:
    """Whether this is the name of a file that an `AtomicFile` began and a kill kept from being finished."""
    return re.fullmatch(r"\..+\.[0-9a-f]{16}\.part", name) is not None


def cannot_write(path: str | Path, error: Exception) -> FileError:
    """Why a file cannot be written, and what to do; the error may come from a library that has only words for it."""
    number, words = getattr(error, "errno", None), str(getattr(error, "strerror", None) or error)
    folder = Path(path).resolve().parent
    if number in (errno.EACCES, errno.EPERM, errno.EROFS) or "ermission denied" in words:
        reason = f"{folder} is read-only here\nfix: choose another folder"
    elif number == errno.ENOSPC or "No space left" in words:
        reason = "the disk is full\nfix: make room there; what was saved before is whole"
    elif not folder.is_dir():
        reason = f"there is no folder {folder}\nfix: make the folder first"
    else:
        reason = words
    return FileError(f"cannot write {path}: {reason}")


def make_folder(folder: str | Path) -> Path:
    """Make a folder and those above it; one that is there is welcome."""
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise FileError(f"cannot make the folder {folder}: a file has this name\nfix: choose another name") from error
    except OSError as error:
        raise FileError(
            f"cannot make the folder {folder}: {error.strerror or error}\nfix: choose another place for it"
        ) from error
    return folder


def open_regular(
    path: str | Path, *, folder: int | None = None, follow: bool = True, shown: Path | None = None
) -> BinaryIO:
    """Open a regular file for reading. A folder, device, pipe or socket is refused; no kind of file makes this hang.

    Args:
        path: the file.
        folder: the descriptor of the folder that a relative path starts from.
        follow: whether the path itself may be a symbolic link.
        shown: how the file is called in errors.
    """
    shown = shown or Path(path)
    # Without O_NONBLOCK a pipe would be waited for. To a regular file it makes no difference.
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
    flags |= 0 if follow else getattr(os, "O_NOFOLLOW", 0)
    try:
        number = os.open(path, flags, dir_fd=folder)
    except FileNotFoundError as error:
        raise FileError(f"there is no {shown}") from error
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
    """All of an open file, refused if it is larger than so many bytes."""
    try:
        size = os.fstat(file.fileno()).st_size
        data = file.read(size) if size <= max_bytes else b""
    except OSError as error:
        raise FileError(f"cannot read {name}: {error.strerror or error}") from error
    if size > max_bytes:
        raise FileError(f"cannot read {name}: it has {size:,} bytes, and at most {max_bytes:,} are read")
    return data


def _kind_of_file(mode: int) -> str:
    kinds = {
        stat.S_IFDIR: "a folder",
        stat.S_IFIFO: "a pipe",
        stat.S_IFSOCK: "a socket",
        stat.S_IFLNK: "a symbolic link",
    }
    return kinds.get(stat.S_IFMT(mode), "a device")


def signed(content: Mapping[str, Any]) -> dict[str, Any]:
    """What goes into a JSON file, with a checksum of it all, by which `is_altered` tells whether it is still the same.

    >>> is_altered(signed({"step": 5})), is_altered({**signed({"step": 5}), "step": 4})
    (False, True)
    """
    return {**content, "checksum": _checksum(content)}


def is_altered(content: Mapping[str, Any]) -> bool:
    """Whether this is not what was signed; what has no checksum is not."""
    unsigned = {name: value for name, value in content.items() if name != "checksum"}
    return bool(content.get("checksum") != _checksum(unsigned))


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
