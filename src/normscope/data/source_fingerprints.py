"""What the sources looked like when they were read, to tell later whether they have changed."""

import hashlib
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from normscope.data.sources import STDIN

SourceChange = Literal["changed", "missing"]


@dataclass(frozen=True)
class SourceFingerprint:
    """One source, as it was.

    Args:
        name: what the user called it.
        path: where it was, in full, so that it is found from any folder.
        size: its bytes.
        mtime_ns: when it was last written, in nanoseconds.
        sha256: the checksum of all its bytes.
    """

    name: str
    path: str
    size: int
    mtime_ns: int
    sha256: str


def changed_sources(fingerprints: Iterable[SourceFingerprint]) -> dict[str, SourceChange]:
    """The names of the files that are not what they were, and whether they have changed or are missing.

    A file of the same size and time is taken to be the same; one of the same size and another time is read. What was
    piped in cannot be looked at again, and never counts as changed.
    """
    found: dict[str, SourceChange] = {}
    for was in fingerprints:
        if was.name == STDIN:
            continue
        change = _change(Path(was.path), was)
        # Moved together with the prepared folder, a file is still found under the name that it was given. What else
        # has that name, in the folder where one happens to be, is another file.
        if change is not None and not (change == "missing" and _change(Path(was.name), was) is None):
            found[was.name] = change
    return found


def _change(path: Path, was: SourceFingerprint) -> SourceChange | None:
    try:
        now = path.stat()
        if not stat.S_ISREG(now.st_mode):
            return "missing"
        if now.st_size != was.size:
            return "changed"
        return None if now.st_mtime_ns == was.mtime_ns or file_sha256(path) == was.sha256 else "changed"
    except OSError:  # it is not there, or may not be looked at
        return "missing"


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
