"""A file of tokens, read where it lies on disk: a corpus may be larger than the memory."""

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
    """The tokens of one part of a corpus: raw little-endian numbers, of which only what is asked for is read.

    It is not mapped into memory. The pages of a mapping count as the process's own, up to two megabytes for each
    window, and a long run over a huge corpus would seem to need all the memory there is.

    Args:
        path: the file.
        dtype: "uint8", "uint16" or "uint32".
        text_bytes: how many bytes of UTF-8 the tokens stand for, ends of documents aside; `bytes` from then on.

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
        with reraise_as(FileError, "prepare the corpus anew"), open_regular(self.path) as file:
            # The file stays open: it is the same one to the end, even if another takes its place meanwhile.
            self._file = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._file)
        size = os.fstat(self._file).st_size
        self.tokens, rest = divmod(size, self.dtype.itemsize)
        if rest:
            raise FileError(
                f"{path} has {size} bytes, which is no whole number of {dtype}\nfix: prepare the corpus anew"
            )
        self._turn = threading.Lock()

    def __len__(self) -> int:
        return self.tokens

    def __repr__(self) -> str:
        return f"TokenFile({str(self.path)!r}, {self.dtype.name!r}, tokens={len(self)}, text_bytes={self.bytes})"

    def window(self, start: int, length: int) -> Tokens:
        """The `length` tokens from `start` on."""
        if not is_integer(start, least=0) or not is_integer(length, least=0) or start + length > len(self):
            raise ShapeError(
                f"tokens {start!r} to {start!r} + {length!r} were asked for, but {self.path.name} has {len(self)}"
            )
        return np.frombuffer(self._read(int(start), int(length)), dtype=self.dtype.newbyteorder("<")).astype(self.dtype)

    def windows(self, starts: NDArray[np.int64], length: int) -> NDArray[np.int64]:
        """A row of `length` tokens from each start on, as 64-bit numbers."""
        rows = np.empty((len(starts), length), dtype=np.int64)
        for row, start in zip(rows, starts.tolist(), strict=True):
            row[:] = self.window(start, length)
        return rows

    def _read(self, start: int, length: int) -> bytes:
        size, place = length * self.dtype.itemsize, start * self.dtype.itemsize
        try:
            data = self._read_bytes(size, place)
        except OSError as error:
            raise FileError(f"cannot read {self.path}: {error.strerror}") from error
        if len(data) < size:
            raise FileError(f"{self.path} has become shorter while it was in use\nfix: prepare the corpus anew")
        return data

    def _read_bytes(self, size: int, place: int) -> bytes:
        if hasattr(os, "pread"):
            return os.pread(self._file, size, place)
        with self._turn:  # Windows has no reading that leaves the place alone
            os.lseek(self._file, place, os.SEEK_SET)
            return os.read(self._file, size)
