"""Token files, read from disk on demand: a corpus may be larger than memory."""

import os
import threading
import weakref
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from normscope.checks import is_integer
from normscope.data.tokenizers.base import Tokens
from normscope.errors import FileError, ShapeError
from normscope.storage.files import open_regular
from normscope.storage.json_files import reraise_as


class TokenFile:
    """The tokens of one part of a corpus: a raw little-endian array of which only the requested windows are read.

    The file is not memory-mapped: mapped pages count as memory of the process, up to 2 MB per window, so a long run
    over a large corpus would appear to use all memory.

    Args:
        path: the file.
        dtype: "uint8", "uint16" or "uint32".
        text_bytes: UTF-8 bytes of the text, without end-of-text tokens; stored as `bytes`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "train.bin"
    ...     size = path.write_bytes(np.arange(10, dtype="<u2").tobytes())
    ...     file = TokenFile(path, "uint16", text_bytes=10)
    ...     len(file), file.window(3, 4)
    (10, array([3, 4, 5, 6], dtype=uint16))
    """

    def __init__(self, path: str | Path, dtype: str, text_bytes: int) -> None:
        self.path = Path(path)
        self.dtype = np.dtype(dtype)
        self.bytes = text_bytes
        with reraise_as(FileError, "prepare the corpus again"), open_regular(self.path) as file:
            # Keep the file open: it stays the same even if another file replaces it.
            self._file = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._file)
        size = os.fstat(self._file).st_size
        self.tokens, rest = divmod(size, self.dtype.itemsize)
        if rest:
            raise FileError(
                f"{path} has {size} bytes, not a multiple of the size of {dtype}\nfix: prepare the corpus again"
            )
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self.tokens

    def __repr__(self) -> str:
        return f"TokenFile({str(self.path)!r}, {self.dtype.name!r}, tokens={len(self)}, text_bytes={self.bytes})"

    def window(self, start: int, length: int) -> Tokens:
        """Return `length` tokens from `start`."""
        if not is_integer(start, least=0) or not is_integer(length, least=0) or start + length > len(self):
            raise ShapeError(
                f"a window of {length!r} tokens from {start!r} is out of range: {self.path.name} has {len(self)} tokens"
            )
        return np.frombuffer(self._read(int(start), int(length)), dtype=self.dtype.newbyteorder("<")).astype(self.dtype)

    def windows(self, starts: NDArray[np.int64], length: int) -> NDArray[np.int64]:
        """Return `length` tokens from each start: an int64 array of shape (starts, length)."""
        rows = np.empty((len(starts), length), dtype=np.int64)
        for row, start in zip(rows, starts.tolist(), strict=True):
            row[:] = self.window(start, length)
        return rows

    def _read(self, start: int, length: int) -> bytes:
        size, offset = length * self.dtype.itemsize, start * self.dtype.itemsize
        try:
            if hasattr(os, "pread"):
                data = os.pread(self._file, size, offset)
            else:
                with self._lock:  # Windows has no pread
                    os.lseek(self._file, offset, os.SEEK_SET)
                    data = os.read(self._file, size)
        except OSError as error:
            raise FileError(f"cannot read {self.path}: {error.strerror}") from error
        if len(data) < size:
            raise FileError(f"{self.path} was truncated while in use\nfix: prepare the corpus again")
        return data
