"""A file of tensors, which are read or memory-mapped."""

import math
import mmap
import os
import weakref
from pathlib import Path

import torch
from torch import Tensor

from normscope.checks import short_repr
from normscope.errors import NormscopeError, WeightsError
from normscope.storage.files import open_regular, os_errors
from normscope.storage.json_files import reraise_as
from normscope.storage.tensor_spec import TensorSpec

MAX_DIMENSIONS = 8


class TensorFile:
    """A regular file, open for reading.

    The whole file is mapped once for all mapped tensors that are in use, so that a file takes one descriptor, and the
    mapping ends with the last of them. It is private: changing a tensor does not change the file.

    Args:
        path: the file.
        fix: fix to suggest in errors.
    """

    def __init__(self, path: Path, fix: str) -> None:
        self.path, self.fix = path, fix
        with reraise_as(WeightsError, fix):
            self._file = open_regular(path)
        weakref.finalize(self, self._file.close)
        self.size = os.fstat(self._file.fileno()).st_size
        self._mapping: weakref.ref[mmap.mmap] | None = None

    def problem(self, text: str, fix: str = "") -> NormscopeError:
        """The exception for a problem; the text follows the path."""
        return WeightsError(f"{self.path} {text}\nfix: {fix or self.fix}")

    def read(self, offset: int, count: int) -> bytes:
        """Read bytes, which must be in the file."""
        if offset < 0 or count < 0 or offset + count > self.size:
            raise self.problem(f"ends at byte {self.size:,}, but {count:,} bytes at offset {offset:,} are needed")
        with reraise_as(WeightsError, self.fix), os_errors(f"cannot read {self.path}"):
            self._file.seek(offset)
            data = self._file.read(count)
        if len(data) != count:
            raise self._changed()
        return data

    def tensor(self, offset: int, spec: TensorSpec) -> Tensor:
        """The tensor stored at an offset, which must be in the file, in memory of its own.

        A copy of a mapped tensor would need its memory twice: the pages of the mapping count too.
        """
        data = torch.empty(spec.nbytes, dtype=torch.uint8)
        with reraise_as(WeightsError, self.fix), os_errors(f"cannot read {self.path}"):
            self._file.seek(offset)
            count = self._file.readinto(data.numpy().data)
        if count != spec.nbytes:
            raise self._changed()
        return _viewed(data, spec)

    def mapped_tensor(self, offset: int, spec: TensorSpec) -> Tensor:
        """The tensor stored at an offset, which must be in the file, in the mapped memory."""
        if spec.nbytes == 0:
            return torch.empty(spec.shape, dtype=spec.dtype)
        if offset + spec.nbytes > self.size or os.fstat(self._file.fileno()).st_size < self.size:
            raise self._changed()  # reading beyond the end of a mapped file would kill the process
        data = torch.frombuffer(self._mapped(), dtype=torch.uint8, offset=offset, count=spec.nbytes)
        return _viewed(
            data.clone() if data.data_ptr() % spec.dtype.itemsize else data, spec
        )  # kernels need aligned data

    def _mapped(self) -> mmap.mmap:
        mapping = self._mapping() if self._mapping is not None else None
        if mapping is None:
            try:
                mapping = mmap.mmap(self._file.fileno(), self.size, access=mmap.ACCESS_COPY)
            except (OSError, ValueError, OverflowError) as error:
                raise self.problem(f"cannot be mapped into memory: {error}") from error
            self._mapping = weakref.ref(mapping)
        return mapping

    def _changed(self) -> NormscopeError:
        return self.problem("was changed while it was read")


def _viewed(data: Tensor, spec: TensorSpec) -> Tensor:
    """Bytes as a tensor of another dtype and shape."""
    if spec.dtype == torch.bool:
        return (data != 0).view(spec.shape)  # other values than 0 and 1 would be undefined behavior
    return data.view(spec.dtype).view(spec.shape)


def shape_problem(shape: tuple[int, ...]) -> str | None:
    """Why torch could not have a tensor of this shape: a dimension may be absurd if another one is zero."""
    absurd = len(shape) > MAX_DIMENSIONS or min(shape, default=0) < 0
    if absurd or math.prod(max(length, 1) for length in shape) >= 2**60:
        return f"the invalid shape {short_repr(shape)}"
    return None
