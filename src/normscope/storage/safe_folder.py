"""Access to a folder without following symbolic links inside it.

A run folder may come from someone else, and a link in it could make normscope read, change or delete files elsewhere.
The folder itself is given by the user and may be reached through links. Every name below it is opened relative to the
descriptor of its folder with O_NOFOLLOW, so that a link cannot be swapped in between.
"""

import errno
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

from normscope.errors import FileError
from normscope.storage.files import AtomicFile, make_folder, open_regular, os_errors, read_limited, write_errors
from normscope.storage.json_files import SMALL_FILE_BYTES, reraise_as

_BY_DESCRIPTOR = os.open in os.supports_dir_fd  # not on Windows, where each name is checked before it is used
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
_RESTORE = "restore the file from a copy"
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)


class SafeFolder:
    """A folder in which symbolic links are an error.

    Args:
        root: The folder given by the user.
        parts: Names of folders below it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as root:
    ...     folder = SafeFolder(root) / "checkpoints"
    ...     folder.create()
    ...     folder.write("best.json", b"{}")
    ...     folder.names(), folder.read("best.json")
    (['best.json'], b'{}')
    """

    def __init__(self, root: str | Path, *parts: str) -> None:
        self.root, self.parts = Path(root), parts

    @classmethod
    def of(cls, folder: "Path | SafeFolder") -> "SafeFolder":
        return folder if isinstance(folder, SafeFolder) else cls(folder)

    @property
    def parent(self) -> "SafeFolder":
        return SafeFolder(self.root, *self.parts[:-1]) if self.parts else SafeFolder(self.root.parent)

    @property
    def path(self) -> Path:
        return Path(self.root, *self.parts)

    def __str__(self) -> str:
        return str(self.path)

    def __truediv__(self, name: str) -> "SafeFolder":
        return SafeFolder(self.root, *self.parts, _check_name(name, self.path))

    def exists(self) -> bool:
        """Whether the folder exists."""
        try:
            with self._opened():
                return True
        except FileError as error:
            if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
                return False
            raise

    def has(self, name: str) -> bool:
        """Whether there is a file or folder with this name; raises on a link."""
        return self._mode(name) is not None

    def names(self) -> list[str]:
        """Names of the entries, sorted; empty if the folder does not exist."""
        if not self.exists():
            return []
        with self._opened() as (descriptor, prefix):
            return sorted(os.listdir(descriptor if descriptor is not None else prefix))

    def open(self, name: str) -> BufferedReader:
        """Open a regular file for reading."""
        self._mode(name)
        with self._opened() as (descriptor, prefix), reraise_as(FileError, _RESTORE):
            try:
                return open_regular(prefix + name, folder=descriptor, follow=False, shown=self.path / name)
            except FileError as error:
                if getattr(error.__cause__, "errno", None) == errno.ELOOP:
                    raise _is_link(self.path / name) from error
                raise

    def read(self, name: str, max_bytes: int = SMALL_FILE_BYTES) -> bytes:
        """Read a file; raises if it is larger than `max_bytes`."""
        with self.open(name) as file, reraise_as(FileError, _RESTORE):
            return read_limited(file, self.path / name, max_bytes)

    def open_append(self, name: str) -> BinaryIO:
        """Open a regular file for appending and truncating; created if it does not exist."""
        mode = self._mode(name)
        shown = self.path / name
        if mode is not None and not stat.S_ISREG(mode):
            raise FileError(f"cannot write {shown}: it is not a regular file\nfix: remove it")
        with self._opened() as (descriptor, prefix):
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | _NOFOLLOW | getattr(os, "O_BINARY", 0)
            with write_errors(shown):
                number = os.open(prefix + name, flags, 0o666, dir_fd=descriptor)
        if os.fstat(number).st_nlink > 1:
            os.close(number)
            raise FileError(
                f"cannot write {shown}: it is a hard link, and the file would change under both names\n"
                f"fix: replace it with a copy: cp {shown} copy && mv copy {shown}"
            )
        # Unbuffered: one write per line, so that a killed process leaves at most one incomplete line.
        return os.fdopen(number, "ab", buffering=0)

    def write(self, name: str, data: bytes | Iterable[bytes | memoryview]) -> None:
        """Write a file, whole or piece by piece, atomically, replacing an existing one."""
        mode, shown = self._mode(name), self.path / name
        if mode is not None and stat.S_ISDIR(mode):
            raise FileError(f"cannot write {shown}: it is a folder\nfix: remove it")
        with self._opened() as (descriptor, prefix), AtomicFile(prefix + name, folder=descriptor, shown=shown) as file:
            for piece in (data,) if isinstance(data, bytes) else data:
                file.write(piece)

    def create(self) -> None:
        """Create the folder and those between it and the root."""
        make_folder(self.root)
        for count, name in enumerate(self.parts):
            outer = SafeFolder(self.root, *self.parts[:count])
            if not outer.has(name):
                with outer._opened() as (descriptor, prefix), write_errors(outer.path / name):
                    os.mkdir(prefix + name, dir_fd=descriptor)
        with self._opened():
            pass  # raises if it is a file

    def remove(self, name: str) -> None:
        """Remove a file or a folder tree as far as possible. Links are removed, not followed."""
        mode = self._mode(name)
        if mode is None:
            return
        with self._opened() as (descriptor, prefix), suppress(OSError):
            if stat.S_ISDIR(mode):
                shutil.rmtree(prefix + name, ignore_errors=True, dir_fd=descriptor)
            else:
                os.unlink(prefix + name, dir_fd=descriptor)

    def sync(self) -> None:
        """Flush the folder entries to disk (fsync)."""
        with suppress(OSError), self._opened() as (descriptor, _):
            if descriptor is not None:
                os.fsync(descriptor)

    def _mode(self, name: str) -> int | None:
        """File mode of an entry, None if it does not exist; raises on a link."""
        _check_name(name, self.path)
        if not self.exists():
            return None
        with self._opened() as (descriptor, prefix), os_errors(f"cannot read {self.path / name}", "remove it"):
            try:
                mode = os.stat(prefix + name, dir_fd=descriptor, follow_symlinks=False).st_mode
            except FileNotFoundError:
                return None
        if stat.S_ISLNK(mode):
            raise _is_link(self.path / name)
        return mode

    @contextmanager
    def _opened(self) -> Iterator[tuple[int | None, str]]:
        """The folder's descriptor, and a prefix for names (empty if descriptors are supported)."""
        if not _BY_DESCRIPTOR:
            for count in range(1, len(self.parts) + 1):
                if Path(self.root, *self.parts[:count]).is_symlink():
                    raise _is_link(Path(self.root, *self.parts[:count]))
            yield None, str(self.path) + os.sep
            return
        with ExitStack() as opened:
            descriptor, path = None, self.root
            for count, name in enumerate((str(self.root), *self.parts)):
                path = path / name if count else path
                try:
                    descriptor = os.open(name, _FOLDER | _NOFOLLOW if count else _FOLDER, dir_fd=descriptor)
                except (OSError, ValueError) as error:
                    if count and path.is_symlink():
                        raise _is_link(path) from None
                    problem = getattr(error, "strerror", None) or error
                    raise FileError(f"cannot open the folder {path}: {problem}\nfix: choose another folder") from error
                opened.callback(os.close, descriptor)
            yield descriptor, ""


def _check_name(name: str, folder: Path) -> str:
    if not name or name in (".", "..") or any(character in name for character in ("/", "\\", "\0")):
        raise FileError(f"{name!r:.80} is not a valid file name in {folder}\nfix: restore the folder from a copy")
    return name


def _is_link(path: Path) -> FileError:
    return FileError(
        f"{path} is a symbolic link, which is not allowed inside a normscope folder\n"
        f"fix: remove it, or replace it with its target if you trust it"
    )
