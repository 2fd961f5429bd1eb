"""Lock a run folder, so that only one process at a time writes to it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from normscope.errors import FileError
from normscope.storage.safe_folder import SafeFolder

LOCK_NAME = ".lock"
"""Locked instead where a folder cannot be, as on some network file systems."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder against other processes; the lock ends with the process.

    The folder itself is locked: a lock file could be deleted, and a second process would lock a new one.
    """
    try:
        import fcntl
    except ImportError:  # Windows has no flock
        yield
        return
    busy = FileError(f"another process is using {folder}\nfix: wait until it ends, or choose another folder")
    if not os.access(folder, os.W_OK):
        raise FileError(f"cannot write to {folder}: it is read-only\nfix: choose another folder")
    number = _open(folder)
    try:
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise busy from None
        except OSError:
            with SafeFolder(folder).open_append(LOCK_NAME) as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise busy from None
                except OSError:
                    pass  # this file system has no locks
                yield
            return
        yield
    finally:
        os.close(number)


def is_locked(folder: Path) -> bool:
    """Whether another process holds the lock of a folder."""
    try:
        import fcntl

        number = _open(folder)
    except (ImportError, FileError):
        return False
    try:
        fcntl.flock(number, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(number, fcntl.LOCK_UN)
        safe_folder = SafeFolder(folder)
        if safe_folder.has(LOCK_NAME):
            with safe_folder.open(LOCK_NAME) as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # this file system has no locks
        return False
    finally:
        os.close(number)
    return False


def _open(folder: Path) -> int:
    try:
        return os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise FileError(f"cannot write to {folder}: {error.strerror or error}\nfix: choose another folder") from error
