"""The sources as one text that can be read again and again, and that has to be the same each time."""

import hashlib
from collections.abc import Callable, Sequence

from normscope.data.readers import TextPieces, read_documents
from normscope.data.source_fingerprints import SourceFingerprint
from normscope.data.sources import SourceFile
from normscope.errors import FileError

Progress = Callable[[int, int], None]
"""Is told how many bytes have been read, of how many in all passes together."""


class SourceReader:
    """Reads the sources, one after the other, as often as it is asked to.

    The first pass takes the fingerprints, and later ones check that no file has changed meanwhile.

    Args:
        sources: the files.
        passes: how often they will be read, for `progress`.
        progress: is told how far it has come.
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
        """The fingerprint of each source, after the first pass."""
        return tuple(self._fingerprints.values())

    def pieces(self) -> TextPieces:
        """One whole pass."""
        for source in self._sources:
            size, written = _status(source)
            digest = hashlib.sha256()
            counted = self._done

            def watch(data: bytes, digest: "hashlib._Hash" = digest) -> None:
                digest.update(data)
                self._done += len(data)

            for piece in read_documents(source, watch):
                self._tell()
                yield piece
            now = SourceFingerprint(source.name, str(source.path.resolve()), size, written, digest.hexdigest())
            if self._fingerprints.setdefault(source, now).sha256 != now.sha256 or self._done - counted != size:
                raise FileError(
                    f"{source.name} changed while it was being read\nfix: wait until it is whole, and start again"
                )
            self._tell()

    def preview(self) -> TextPieces:
        """A pass that need not come to its end, and that nobody is told of."""
        for source in self._sources:
            yield from read_documents(source, lambda _: None)

    def skip(self) -> None:
        """A pass that turned out not to be needed: for `progress` it is done."""
        self._done += sum(self._sizes)

    def _tell(self) -> None:
        if self._progress is not None:
            self._progress(min(self._done, self._total), self._total)


def _status(source: SourceFile) -> tuple[int, int]:
    try:
        status = source.path.stat()
    except OSError as error:
        raise FileError(f"cannot read {source.name}: {error.strerror}\nfix: check that it is still there") from error
    return status.st_size, status.st_mtime_ns
