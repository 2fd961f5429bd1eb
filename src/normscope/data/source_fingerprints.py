"""Fingerprints of source files, to detect later changes."""

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
    """A source file at the time it was read.

    Args:
        name: the name the user gave.
        path: absolute path.
        size: size in bytes.
        mtime_ns: modification time in nanoseconds.
        sha256: checksum of the contents.
    """

    name: str
    path: str
    size: int
    mtime_ns: int
    sha256: str


def changed_sources(fingerprints: Iterable[SourceFingerprint]) -> dict[str, SourceChange]:
    """Return the names of the files that have changed or are missing.

    A file with the same size and modification time counts as unchanged; with another time, its checksum decides.
    Standard input cannot be read again and never counts as changed.
    """
    found: dict[str, SourceChange] = {}
    for was in fingerprints:
        if was.name == STDIN:
            continue
        change = _change(Path(was.path), was)
        # A file that was moved together with the corpus is found under its relative name. An unrelated file of that
        # name in the current folder does not count.
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
    except OSError:  # missing, or not readable
        return "missing"


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
