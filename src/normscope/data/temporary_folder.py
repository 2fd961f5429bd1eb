"""Temporary folders for files in preparation, inside the output folder."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from normscope.storage.files import make_folder, write_error

_PREFIX = ".preparing-"


@contextmanager
def temporary_folder(folder: str | Path) -> Iterator[Path]:
    """Create a hidden temporary folder inside `folder` (on the same disk), and remove it at the end of the block.

    A killed process leaves its temporary folder behind; the next call in the same folder removes it. Locks tell the two
    apart: a temporary folder is locked while its process lives.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with temporary_folder(folder) as temporary:
    ...         size = (temporary / "half.bin").write_bytes(b"half")
    ...     os.listdir(folder)
    []
    """
    folder = make_folder(folder)
    with ExitStack() as held:
        with _locked(folder, wait=True):  # otherwise another process could remove a folder that is not locked yet
            _remove_abandoned(folder)
            try:
                temporary = Path(held.enter_context(tempfile.TemporaryDirectory(dir=folder, prefix=_PREFIX)))
            except OSError as error:
                raise write_error(folder / _PREFIX, error) from error
            held.enter_context(_locked(temporary))
        yield temporary


def _remove_abandoned(folder: Path) -> None:
    for temporary in folder.glob(f"{_PREFIX}*"):
        with _locked(temporary) as abandoned:
            if abandoned:
                shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def _locked(folder: Path, *, wait: bool = False) -> Iterator[bool]:
    """Lock a folder. Yields whether the lock was acquired; always False on systems without flock."""
    try:
        import fcntl

        number = os.open(folder, os.O_RDONLY)
    except (ImportError, OSError):  # Windows has no fcntl and cannot open folders
        yield False
        return
    try:
        fcntl.flock(number, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        held = True
    except OSError:
        held = False
    try:
        yield held
    finally:
        os.close(number)
