"""Lock a folder, so that only one process at a time writes to it."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from normscope.errors import FileError
from normscope.storage.safe_folder import SafeFolder

try:
    import fcntl
except ImportError:  # Windows has no flock
    _HAS_FLOCK = False
else:
    _HAS_FLOCK = True

LOCK_NAME = ".lock"
"""Locked instead where a folder cannot be, as on some network file systems."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder against other processes; the lock ends with the process.

    The folder itself is locked: a lock file could be deleted, and a second process would lock a new one.
    """
    if not _HAS_FLOCK:
        yield
        return
    if not os.access(folder, os.W_OK):
        raise FileError(f"cannot write to {folder}: it is read-only\nfix: choose another folder")
    with ExitStack() as stack:
        is_free = stack.enter_context(try_locked(folder))
        if is_free is None:
            is_free = try_lock(stack.enter_context(SafeFolder(folder).open_append(LOCK_NAME)))
        if is_free is False:
            problem = f"another process is using {folder}"
            raise FileError(f"{problem}\nfix: wait until it ends, or choose another folder")
        yield


def is_locked(folder: Path) -> bool:
    """Whether another process holds the lock of a folder."""
    with suppress(OSError):
        with try_locked(folder, shared=True) as is_free:
            pass  # released at once: a process that starts now must get the lock
        if is_free and SafeFolder(folder).has(LOCK_NAME):
            with SafeFolder(folder).open(LOCK_NAME) as file:
                is_free = try_lock(file, shared=True)
        return is_free is False
    return False


def try_lock(file: int | BinaryIO, *, shared: bool = False, wait: bool = False) -> bool | None:
    """Lock an open file or folder; False if another process has the lock, None if the file system has no locks."""
    if not _HAS_FLOCK:
        return None
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


@contextmanager
def try_locked(folder: Path, *, shared: bool = False, wait: bool = False) -> Iterator[bool | None]:
    """Lock a folder itself within the block; yields what `try_lock` returns, None if the folder cannot be opened."""
    try:
        number = os.open(folder, os.O_RDONLY)
    except OSError:  # Windows cannot open folders
        yield None
        return
    try:
        yield try_lock(number, shared=shared, wait=wait)
    finally:
        os.close(number)
