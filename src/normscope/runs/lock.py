"""One process at a time in a run's folder."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from normscope.errors import FileError
from normscope.storage.safe_folder import OwnFolder

LOCK_NAME = ".lock"
"""Locked where a folder itself cannot be, as on some network file systems."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep a second process from working in the same folder; the lock goes with the process, however it ends.

    The folder itself is locked: a file in it could be removed, and a second process would lock another one.
    """
    try:
        import fcntl
    except ImportError:  # not on Windows, where the user has to take care
        yield
        return
    busy = FileError(f"another process is at work on {folder}\nfix: wait for it to end, or choose another folder")
    if not os.access(folder, os.W_OK):
        raise FileError(
            f"cannot write in {folder}: it is read-only here\nfix: a run writes into its folder; choose another"
        )
    number = _open(folder)
    try:
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise busy from None
        except OSError:
            with OwnFolder(folder).open_to_append(LOCK_NAME) as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise busy from None
                except OSError:
                    pass  # a file system that has no locks at all; the user has to take care there too
                yield
            return
        yield
    finally:
        os.close(number)


def is_locked(folder: Path) -> bool:
    """Whether a process is at work in the folder, as far as the system tells."""
    try:
        import fcntl

        number = _open(folder)
    except (ImportError, FileError):
        return False
    try:
        fcntl.flock(number, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(number, fcntl.LOCK_UN)
        inside = OwnFolder(folder)
        if inside.has(LOCK_NAME):
            with inside.open(LOCK_NAME) as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no locks here
        return False
    finally:
        os.close(number)
    return False


def _open(folder: Path) -> int:
    try:
        return os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise FileError(
            f"cannot write in {folder}: {error.strerror or error}\nfix: a run writes into its folder; choose another"
        ) from error
