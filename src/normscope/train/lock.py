"""One process at a time in a run's folder."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from normscope.errors import FileError

LOCK_NAME = ".lock"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep a second process from working in the same folder; the lock goes with the process, however it ends."""
    try:
        import fcntl
    except ImportError:  # not on Windows, where the user has to take care
        yield
        return
    try:
        file = (folder / LOCK_NAME).open("w")
    except OSError as error:
        raise FileError(
            f"cannot write in {folder}: {error.strerror or error}\nfix: a run writes into its folder; choose another"
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FileError(
                f"another process is at work on {folder}\nfix: wait for it to end, or choose another folder"
            ) from None
        except OSError:
            pass  # a file system that has no locks; the user has to take care there too
        yield


def is_locked(folder: Path) -> bool:
    """Whether a process is at work in the folder, as far as the system tells."""
    try:
        import fcntl

        with (folder / LOCK_NAME).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (ImportError, OSError):  # no locks here, or nobody ever took one
        return False
    return False
