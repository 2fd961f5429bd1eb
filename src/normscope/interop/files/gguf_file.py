"""Read GGUF files, the format of llama.cpp: metadata, descriptions of the tensors, then their data.

Every count and length in the file is compared with what is left of it before anything is allocated.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from normscope.checks import as_path, short_repr
from normscope.interop.files.gguf_quantization import BLOCK_FORMATS, OTHER_TYPES, BlockFormat, dequantize
from normscope.interop.files.lazy_tensors import LazyTensors
from normscope.interop.files.tensor_file import TensorFile, shape_problem
from normscope.storage.json_files import MIB
from normscope.storage.tensor_spec import TensorSpec

MAX_METADATA_BYTES = 64 * MIB
"""Limit of everything before the data; a vocabulary of 256k tokens with merges has 12 MiB."""
MAX_VALUES = 2**21
"""Limit of values in the metadata; a vocabulary of 256k tokens with merges has 1.3 million."""
MAX_STRINGS = 2**20
"""Limit of the strings among them, each of which is read by itself; such a vocabulary has 780,000."""
MAX_TENSORS = 2**14
"""Limit of tensors and of metadata keys: the largest models have 2,000 tensors, as experts are stored together."""
_FIX = "download it again, or convert the model again with llama.cpp"
_NUMBERS = {0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8", 11: "<i8", 12: "<f8"}
"""numpy dtypes of the value types."""
_STRING, _ARRAY = 8, 9
_DEFAULT_ALIGNMENT = 32


@dataclass(frozen=True)
class GGUFFile:
    """The contents of a GGUF file.

    Args:
        path: the file.
        metadata: settings of the model and its tokenizer.
        tensors: tensors in their stored dtype; quantized ones are dequantized to float32 when they are read.
        types: name of the stored type of each tensor, such as "Q4_K".
    """

    path: Path
    metadata: dict[str, Any]
    tensors: LazyTensors
    types: dict[str, str]


class _Stored(NamedTuple):
    """A tensor in the file.

    Args:
        offset: from the start of the data.
        nbytes: size in the file.
    """

    block_format: BlockFormat
    shape: tuple[int, ...]
    offset: int
    nbytes: int


def open_gguf(path: str | Path) -> GGUFFile:
    """Open a GGUF file of version 2 or 3; the tensors are read when they are looked up."""
    file = TensorFile(as_path(path, "a GGUF file"), _FIX)
    reader = _Reader(file)
    tensor_count, metadata = _read_metadata(file, reader)
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if type(alignment) is not int or not 8 <= alignment <= MIB or alignment & (alignment - 1):
        raise file.problem(f"has general.alignment {short_repr(alignment)} instead of a power of two")
    stored = _read_tensors(reader, tensor_count)
    start = -(-reader.position // alignment) * alignment
    _check_offsets(file, stored, start, alignment)
    specs = {name: TensorSpec(one.shape, one.block_format.dtype) for name, one in stored.items()}

    def read(name: str) -> Tensor:
        block_format, shape, offset, nbytes = stored[name]
        if block_format.dequantize is None:
            return file.tensor(start + offset, specs[name])
        data = file.tensor(start + offset, TensorSpec((nbytes,), torch.uint8))
        return dequantize(block_format, data).view(shape)

    types = {name: one.block_format.name for name, one in stored.items()}
    return GGUFFile(file.path, metadata, LazyTensors(specs, read), types)


class _Reader:
    """Reads values one after the other."""

    def __init__(self, file: TensorFile) -> None:
        self._file = file
        self._buffer = bytearray()
        self._values = self._strings = 0
        self._end = min(file.size, MAX_METADATA_BYTES)
        self.position = 0

    def problem(self, text: str) -> Exception:
        return self._file.problem(f"is not a valid GGUF file: {text}")

    def take(self, count: int) -> bytearray:
        """The next bytes."""
        end = self.position + count
        if end > len(self._buffer):
            self._fill(end)
        data = self._buffer[self.position : end]
        self.position = end
        return data

    def _fill(self, end: int) -> None:
        if end > self._end:
            sizes = f"{end:,} bytes, the file has {self._file.size:,}, the limit is {MAX_METADATA_BYTES:,}"
            raise self.problem(f"its metadata would need at least {sizes}")
        missing = max(end - len(self._buffer), MIB)  # blocks, as most values have a few bytes
        self._buffer += self._file.read(len(self._buffer), min(missing, self._file.size - len(self._buffer)))

    def number(self, size: int) -> int:
        """An unsigned integer of so many bytes."""
        return int.from_bytes(self.take(size), "little")

    def count(self, what: str, smallest: int, limit: int = MAX_VALUES) -> int:
        """A number of things, each of which takes at least so many bytes."""
        count = self.number(8)
        left = self._end - self.position
        if count > limit or count * smallest > left:
            raise self.problem(f"it would have {count:,} {what}, with {left:,} bytes left and a limit of {limit:,}")
        return count

    def text(self) -> str:
        data = self.take(self.count("bytes in a string", 1, MAX_METADATA_BYTES))
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise self.problem(f"the string {bytes(data)!r:.80} is not UTF-8") from None

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            return self._array()
        return self._numbers(kind, 1)[0]

    def _array(self) -> list[Any]:
        kind = self.number(4)
        if kind == _ARRAY:
            raise self.problem("it has an array of arrays, which llama.cpp does not read either")
        size = np.dtype(_NUMBERS[kind]).itemsize if kind in _NUMBERS else 8
        count = self.count("elements in an array", size)
        self._values += count
        self._strings += count if kind == _STRING else 0
        if self._values > MAX_VALUES or self._strings > MAX_STRINGS:
            limits = f"{MAX_VALUES:,} values, or {MAX_STRINGS:,} strings in arrays"
            raise self.problem(f"its metadata has more than {limits}")
        if kind == _STRING:
            return [self.text() for _ in range(count)]
        return self._numbers(kind, count)

    def _numbers(self, kind: int, count: int) -> list[Any]:
        if kind not in _NUMBERS:
            raise self.problem(f"it has a value of the unknown type {kind}")
        dtype = np.dtype(_NUMBERS[kind])
        values: list[Any] = np.frombuffer(self.take(count * dtype.itemsize), dtype).tolist()
        return values


def _read_metadata(file: TensorFile, reader: _Reader) -> tuple[int, dict[str, Any]]:
    """The number of tensors, and the metadata."""
    if file.size < 24 or file.read(0, 4) != b"GGUF":
        raise file.problem("is not a GGUF file")
    reader.take(4)
    version = reader.number(4)
    if version not in (2, 3):
        what = "is a big-endian file" if version > 2**16 else f"has version {version}"
        raise file.problem(f"{what}; GGUF versions 2 and 3 in little-endian order are supported")
    tensor_count = reader.count("tensors", 24, MAX_TENSORS)
    metadata: dict[str, Any] = {}
    for _ in range(reader.count("metadata keys", 13, MAX_TENSORS)):
        key = reader.text()
        if key in metadata:
            raise reader.problem(f"its metadata has the key {key!a:.80} twice")
        metadata[key] = reader.value(reader.number(4))
    return tensor_count, metadata


def _read_tensors(reader: _Reader, count: int) -> dict[str, _Stored]:
    stored: dict[str, _Stored] = {}
    for _ in range(count):
        name = reader.text()
        if name in stored:
            raise reader.problem(f"two tensors have the name {name!a:.80}")
        dimensions = reader.number(4)
        if dimensions > 4:
            raise reader.problem(f"the tensor {name!a:.80} has {dimensions:,} dimensions")
        shape = tuple(reader.number(8) for _ in range(dimensions))[::-1]  # the last one is contiguous, as in torch
        problem = shape_problem(shape)
        if problem is not None:
            raise reader.problem(f"the tensor {name!a:.80} has {problem}")
        block_format = _block_format(reader, name)
        row = shape[-1] if shape else 1
        if row % block_format.values:
            blocks = f"{block_format.name} has blocks of {block_format.values}"
            raise reader.problem(f"the tensor {name!a:.80} has rows of {row:,} values, but {blocks}")
        nbytes = int(np.prod(shape, dtype=object)) // block_format.values * block_format.nbytes
        stored[name] = _Stored(block_format, shape, reader.number(8), nbytes)
    return stored


def _block_format(reader: _Reader, name: str) -> BlockFormat:
    kind = reader.number(4)
    if kind not in BLOCK_FORMATS:
        known = ", ".join(sorted(one.name for one in BLOCK_FORMATS.values()))
        raise reader.problem(
            f"the tensor {name!a:.80} has the unsupported type {OTHER_TYPES.get(kind, kind)}; supported are {known}"
        )
    return BLOCK_FORMATS[kind]


def _check_offsets(file: TensorFile, stored: dict[str, _Stored], start: int, alignment: int) -> None:
    """Check that the tensors are aligned, in the file, and apart."""
    end = 0
    for name, one in sorted(stored.items(), key=lambda item: (item[1].offset, item[1].nbytes)):
        if one.offset % alignment:
            raise file.problem(f"has a tensor {name!a:.80} at offset {one.offset:,}, not a multiple of {alignment}")
        if one.offset < end:
            raise file.problem(f"has a tensor {name!a:.80} that overlaps another one")
        end = one.offset + one.nbytes
        if start + end > file.size:
            raise file.problem(f"ends at byte {file.size:,}, but its tensor {name!a:.80} at {start + end:,}")
