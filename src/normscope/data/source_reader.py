"""Read source files in several passes, and verify that they do not change in between."""

import hashlib
from collections.abc import Callable, Sequence

from normscope.data.readers import TextPieces, read_documents
from normscope.data.source_fingerprints import SourceFingerprint
from normscope.data.sources import SourceFile
from normscope.errors import FileError

Progress = Callable[[int, int], None]
"""Callback that gets the bytes read so far and the total of all passes."""


class SourceReader:
    """Reads source files in several passes.

    The first pass records their fingerprints; later passes check that no file has changed.

    Args:
        sources: the files.
        passes: number of passes, for `progress`.
        progress: called with the bytes read so far and the total.
    """

    def __init__(self, sources: Sequence[SourceFile], passes: int, progress: Progress | None = None) -> None:
        self._sources = sources
        self._progress = progress
        self._sizes = [_status(source)[0] for source in sources]
        self._total = passes * sum(self._sizes)
        self._done = 0
        self._fingerprints: dict[SourceFile, SourceFingerprint] = {}

    @property
    def fingerprints(self) -> tuple[SourceFingerprint, ...]:
        """Fingerprint of each source, after the first pass."""
        return tuple(self._fingerprints.values())

    def pieces(self) -> TextPieces:
        """Read all documents in one pass."""
        for source in self._sources:
            size, written = _status(source)
            digest = hashlib.sha256()
            counted = self._done

            def on_bytes(data: bytes, digest: "hashlib._Hash" = digest) -> None:
                digest.update(data)
                self._done += len(data)

            for piece in read_documents(source, on_bytes):
                self._report()
                yield piece
            now = SourceFingerprint(source.name, str(source.path.resolve()), size, written, digest.hexdigest())
            if self._fingerprints.setdefault(source, now).sha256 != now.sha256 or self._done - counted != size:
                raise FileError(
                    f"{source.name} changed while it was being read\nfix: wait until it is complete, then try again"
                )
            self._report()

    def preview(self) -> TextPieces:
        """Read documents without progress or checks; the pass may be abandoned."""
        for source in self._sources:
            yield from read_documents(source, lambda _: None)

    def skip_pass(self) -> None:
        """Count a pass as done for `progress`."""
        self._done += sum(self._sizes)

    def _report(self) -> None:
        if self._progress is not None:
            self._progress(min(self._done, self._total), self._total)


def _status(source: SourceFile) -> tuple[int, int]:
    try:
        status = source.path.stat()
    except OSError as error:
        raise FileError(f"cannot read {source.name}: {error.strerror}\nfix: check that it still exists") from error
    return status.st_size, status.st_mtime_ns
