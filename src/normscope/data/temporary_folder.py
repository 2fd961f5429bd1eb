"""A place for what a preparation writes on its way, beside what will come of it."""

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
    """A hidden folder in this one, and so on the same disk, for as long as the block lasts.

    A process that is killed leaves its place behind, and the next one that works here removes it. It knows it by its
    lock: a place is locked as long as its process lives, however that ends.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with temporary_folder(folder) as place:
    ...         size = (place / "half.bin").write_bytes(b"half")
    ...     os.listdir(folder)
    []
    """
    folder = make_folder(folder)
    with ExitStack() as held:
        with _locked(folder, wait=True):  # or another might take a new place, not locked yet, for one left behind
            _remove_left_behind(folder)
            try:
                place = Path(held.enter_context(tempfile.TemporaryDirectory(dir=folder, prefix=_PREFIX)))
            except OSError as error:
                raise write_error(folder / _PREFIX, error) from error
            held.enter_context(_locked(place))
        yield place


def _remove_left_behind(folder: Path) -> None:
    for place in folder.glob(f"{_PREFIX}*"):
        with _locked(place) as alone:
            if alone:
                shutil.rmtree(place, ignore_errors=True)


@contextmanager
def _locked(folder: Path, *, wait: bool = False) -> Iterator[bool]:
    """Hold a folder; says whether it is held now. It is not if another does, nor where the system has no such locks."""
    try:
        import fcntl

        number = os.open(folder, os.O_RDONLY)
    except (ImportError, OSError):  # Windows has neither the one nor the other
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
