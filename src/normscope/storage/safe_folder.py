"""A folder that normscope writes, such as a run's: nothing inside it may be a symbolic link.

Such a folder may come from someone else, and a link in it would make normscope read, overwrite or remove files
elsewhere. The folder itself is named by the user, and may be reached through links. Below it every name is opened
relative to the descriptor of its folder, without following links, so that none can be put in between.
"""

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from normscope.errors import FileError
from normscope.storage.files import AtomicFile, make_folder, open_regular, read_limited, write_error

_BY_DESCRIPTOR = os.open in os.supports_dir_fd  # not on Windows, where each name is looked at before it is used
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)


class SafeFolder:
    """A folder and what is in it.

    Args:
        root: the folder that the user named.
        parts: the names of folders below it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     folder = SafeFolder(place) / "checkpoints"
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
        return SafeFolder(self.root, *self.parts, _plain(name, self.path))

    def exists(self) -> bool:
        """Whether it is there."""
        try:
            with self._opened():
                return True
        except FileError as error:
            if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
                return False
            raise

    def has(self, name: str) -> bool:
        """Whether there is a file or folder of this name; a link is refused."""
        return self._mode(name) is not None

    def names(self) -> list[str]:
        """What is in it, in order; nothing if it isn't there."""
        if not self.exists():
            return []
        with self._opened() as (place, prefix):
            return sorted(os.listdir(place if place is not None else prefix))

    def open(self, name: str) -> BinaryIO:
        """A regular file in it, for reading."""
        self._mode(name)
        with self._opened() as (place, prefix):
            try:
                return open_regular(prefix + name, folder=place, follow=False, shown=self.path / name)
            except FileError as error:
                if getattr(error.__cause__, "errno", None) == errno.ELOOP:
                    raise _is_link(self.path / name) from error
                raise FileError(f"{error}\nfix: put the file there that was written") from error.__cause__

    def read(self, name: str, max_bytes: int = 2**24) -> bytes:
        """A whole file; refused if it has more bytes than that."""
        with self.open(name) as file:
            try:
                return read_limited(file, self.path / name, max_bytes)
            except FileError as error:
                raise FileError(f"{error}\nfix: put the file there that was written") from error.__cause__

    def open_append(self, name: str) -> BinaryIO:
        """A regular file in it, to be written on and cut in place; made if it isn't there."""
        mode = self._mode(name)
        shown = self.path / name
        if mode is not None and not stat.S_ISREG(mode):
            raise FileError(f"cannot write {shown}: it is not a regular file\nfix: remove it")
        with self._opened() as (place, prefix):
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | _NOFOLLOW | getattr(os, "O_BINARY", 0)
            try:
                number = os.open(prefix + name, flags, 0o666, dir_fd=place)
            except OSError as error:
                raise write_error(shown, error) from error
        if os.fstat(number).st_nlink > 1:
            os.close(number)
            raise FileError(
                f"cannot write {shown}: the file has another name too (a hard link), and would change under both\n"
                f"fix: replace it with a copy: cp {shown} copy && mv copy {shown}"
            )
        # Without a buffer a line is one write: a killed process leaves whole lines, or one that is torn.
        return os.fdopen(number, "ab", buffering=0)

    def write(self, name: str, data: bytes) -> None:
        """Write a file whole or not at all, in place of the one that is there."""
        with self.atomic(name) as file:
            file.write(data)

    @contextmanager
    def atomic(self, name: str) -> Iterator[AtomicFile]:
        """A file that is written bit by bit and takes its place in the end."""
        mode = self._mode(name)
        if mode is not None and stat.S_ISDIR(mode):
            raise FileError(f"cannot write {self.path / name}: it is a folder\nfix: remove it")
        with self._opened() as (place, prefix), AtomicFile(prefix + name, folder=place, shown=self.path / name) as file:
            yield file

    def rename(self, old: str, new: str) -> None:
        """Give a file another name, in place of the one that has it."""
        self._mode(new)
        with self._opened() as (place, prefix):
            try:
                os.replace(prefix + old, prefix + new, src_dir_fd=place, dst_dir_fd=place)
            except OSError as error:
                raise write_error(self.path / new, error) from error

    def create(self) -> None:
        """Make it, and the folders between it and the root."""
        make_folder(self.root)
        for count, name in enumerate(self.parts):
            outer = SafeFolder(self.root, *self.parts[:count])
            if outer.has(name):
                continue
            with outer._opened() as (place, prefix):
                try:
                    os.mkdir(prefix + name, dir_fd=place)
                except OSError as error:
                    raise write_error(outer.path / name, error) from error
        with self._opened():
            pass  # refuses a file of this name

    def remove(self, name: str) -> None:
        """Remove a file, or a folder with all that is in it, as far as possible. Links in it go; none is followed."""
        mode = self._mode(name)
        if mode is None:
            return
        with self._opened() as (place, prefix), suppress(OSError):
            if stat.S_ISDIR(mode):
                shutil.rmtree(prefix + name, ignore_errors=True, dir_fd=place)
            else:
                os.unlink(prefix + name, dir_fd=place)

    def sync(self) -> None:
        """Bring the names in it to the disk, as fsync does the bytes of a file."""
        with suppress(OSError), self._opened() as (place, _):
            if place is not None:
                os.fsync(place)

    def _mode(self, name: str) -> int | None:
        """The kind of a name in it, None if it isn't there; a link is refused."""
        _plain(name, self.path)
        if not self.exists():
            return None
        with self._opened() as (place, prefix):
            try:
                mode = os.stat(prefix + name, dir_fd=place, follow_symlinks=False).st_mode
            except FileNotFoundError:
                return None
            except OSError as error:
                raise FileError(f"cannot read {self.path / name}: {error.strerror or error}\nfix: remove it") from error
        if stat.S_ISLNK(mode):
            raise _is_link(self.path / name)
        return mode

    @contextmanager
    def _opened(self) -> Iterator[tuple[int | None, str]]:
        """The folder's descriptor, and what to put before a name in it: nothing, unless there are no descriptors."""
        if not _BY_DESCRIPTOR:
            for count in range(1, len(self.parts) + 1):
                if Path(self.root, *self.parts[:count]).is_symlink():
                    raise _is_link(Path(self.root, *self.parts[:count]))
            yield None, str(self.path) + os.sep
            return
        with ExitStack() as opened:
            place, path = None, self.root
            for count, name in enumerate((str(self.root), *self.parts)):
                path = path / name if count else path
                try:
                    place = os.open(name, _FOLDER | _NOFOLLOW if count else _FOLDER, dir_fd=place)
                except (OSError, ValueError) as error:
                    if count and path.is_symlink():
                        raise _is_link(path) from None
                    problem = getattr(error, "strerror", None) or error
                    raise FileError(f"cannot open the folder {path}: {problem}\nfix: name another") from error
                opened.callback(os.close, place)
            yield place, ""


def _plain(name: str, folder: Path) -> str:
    if not name or name in (".", "..") or any(character in name for character in ("/", "\\", "\0")):
        raise FileError(f"{name!r:.80} cannot be the name of a file in {folder}\nfix: use the folder as it was written")
    return name


def _is_link(path: Path) -> FileError:
    return FileError(
        f"{path} is a symbolic link, and nothing in a folder of normscope's may be one\n"
        f"fix: remove it, or put what it points at in its place if you trust it"
    )
