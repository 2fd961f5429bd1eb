"""Read files of torch.save without executing their pickle.

Such a file is an uncompressed zip: `data.pkl` describes the saved object, and the storages of its tensors are members
`data/0`, `data/1`, ... Tensors are memory-mapped from there. Tensors that shared a storage still do.
"""

import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from normscope.checks import as_path, is_integer
from normscope.interop.files.pickle_builders import PLAIN
from normscope.interop.files.pickle_file import FIX, MAX_BYTES, PickleReader
from normscope.interop.files.tensor_file import TensorFile, shape_problem
from normscope.interop.files.zip_directory import Member, zip_members
from normscope.storage.json_files import ContentError
from normscope.storage.tensor_spec import TensorSpec

_SAVE_AGAIN = "load it with torch.load(path, weights_only=True), and save it again with torch.save"
_MAX_RECORD = 1024
"""Limit of the records beside the pickle and the storages: a version, the byte order."""
_STORAGES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}
_OTHER_DTYPES = ("float8_e4m3fn", "float8_e5m2", "uint16", "uint32", "uint64")
"""Those without a storage class of their own."""


class _StorageType(NamedTuple):
    dtype: torch.dtype


class _Storage(NamedTuple):
    """A storage as a flat tensor of its elements."""

    elements: Tensor


def read_torch_file(path: str | Path) -> Any:
    """Read what torch.save wrote: containers of tensors, strings and numbers.

    Parameters are read as tensors, and tensors of other devices on the CPU. The file is memory-mapped as long as one of
    the tensors is in use.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     torch.save({"model": torch.nn.Linear(2, 3).state_dict(), "iter_num": 5}, f"{folder}/ckpt.pt")
    ...     checkpoint = read_torch_file(f"{folder}/ckpt.pt")
    >>> checkpoint["model"]["weight"].shape, checkpoint["iter_num"]
    (torch.Size([3, 2]), 5)
    """
    file = TensorFile(as_path(path, "a file of torch.save"), FIX)
    _check_kind(file)
    archive = _Archive(file)
    try:
        return PickleReader(_ALLOWED, archive.storage).read(archive.record("data.pkl", MAX_BYTES))
    except ContentError as problem:
        raise file.problem(str(problem)) from None


def is_state_dict(content: object) -> bool:
    """Whether this is a state_dict: names and tensors."""
    return isinstance(content, Mapping) and all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in content.items()
    )


def without_wrappers(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Remove what torch.compile and DistributedDataParallel put before each name.

    >>> list(without_wrappers({"_orig_mod.module.head.weight": torch.zeros(1)}))
    ['head.weight']
    """
    return {re.sub(r"^(_orig_mod\.|module\.)+", "", name): weight for name, weight in weights.items()}


class _Archive:
    """The zip file, whose members are all in one folder."""

    def __init__(self, file: TensorFile) -> None:
        self._file = file
        members = zip_members(file)
        folders = [name.removesuffix("/data.pkl") for name in members if re.fullmatch(r"[^/]+/data\.pkl", name)]
        if len(folders) != 1:
            raise file.problem("was not written by torch.save: it has no data.pkl")
        self._members = {name.removeprefix(f"{folders[0]}/"): member for name, member in members.items()}
        if "constants.pkl" in self._members:
            raise file.problem("is a TorchScript program, not weights")
        order = self.record("byteorder", _MAX_RECORD) if "byteorder" in self._members else b"little"
        if order != b"little":
            raise file.problem(f"has the byte order {order!r:.40}; only little-endian files are supported")
        self._storages: dict[str, tuple[torch.dtype, _Storage]] = {}

    def record(self, name: str, limit: int) -> bytes:
        """The content of a small member, whose checksum is verified."""
        member = self._members[name]
        if member.size > limit:
            raise self._file.problem(f"has a {name} of {member.size:,} bytes, more than the limit of {limit:,}")
        data = self._file.read(member.offset, member.size)
        if zlib.crc32(data) != member.checksum:
            raise self._file.problem(f"is damaged: the checksum of {name} is wrong")
        return data

    def storage(self, name: Any) -> _Storage:
        """The storage that the pickle names: ("storage", type, key, device, number of elements)."""
        match name:
            case ("storage", _StorageType(dtype), str(key), str(), int(count)) if count >= 0:
                pass
            case _:
                raise ContentError(f"names an invalid storage: {name!r:.120}")
        if key not in self._storages:
            self._storages[key] = dtype, _Storage(self._elements(key, dtype, count))
        found, storage = self._storages[key]
        if found != dtype or storage.elements.numel() != count:
            raise ContentError(f"names the storage {key!r:.40} twice with different types")
        return storage

    def _elements(self, key: str, dtype: torch.dtype, count: int) -> Tensor:
        member: Member | None = self._members.get(f"data/{key}")
        if member is None:
            raise ContentError(f"has no member data/{key!a:.40}")
        if member.size != count * dtype.itemsize:
            needed = f"{count:,} elements of {dtype} need {count * dtype.itemsize:,}"
            raise ContentError(f"has {member.size:,} bytes in data/{key}, but {needed}")
        return self._file.mapped_tensor(member.offset, TensorSpec((count,), dtype))


def _check_kind(file: TensorFile) -> None:
    """Refuse other formats by their names."""
    start = file.read(0, min(file.size, 512))
    kind = None
    if start.startswith(b"\x80"):
        kind = "a plain pickle, or was saved in torch's old format"
    elif start[257:262] == b"ustar":
        kind = "a tar archive, torch's oldest format"
    elif not start.startswith(b"PK\3\4"):
        kind = "no zip file as torch.save writes it"
    if kind is not None:
        raise file.problem(f"is {kind}, which is not read", _SAVE_AGAIN)


def _tensor(storage: _Storage, offset: int, shape: tuple[int, ...], stride: tuple[int, ...], *_: object) -> Tensor:
    """A view of a storage, which must lie in it; gradients and hooks that follow are not read."""
    shape, stride, size = tuple(shape), tuple(stride), storage.elements.numel()
    if not all(is_integer(one, least=0) for one in (offset, *shape, *stride)) or shape_problem(shape) is not None:
        raise ValueError(f"a shape of {shape!r:.80} with strides {stride!r:.80} at {offset!r:.40}")
    last = offset + sum((length - 1) * step for length, step in zip(shape, stride, strict=True))
    count = torch.Size(shape).numel()
    if count > 0 and (last >= size or count > size):
        raise ValueError(f"a tensor of shape {shape} up to element {last:,} in a storage of {size:,}")
    return torch.as_strided(storage.elements, shape, stride, offset if count else 0)


def _tensor_of_dtype(
    storage: _Storage, offset: int, shape: tuple[int, ...], stride: tuple[int, ...], _: Any, __: Any, dtype: torch.dtype
) -> Tensor:
    """A view of a storage of bytes as another dtype."""
    return _tensor(_Storage(storage.elements.view(dtype)), offset, shape, stride)


def _size(lengths: tuple[int, ...]) -> torch.Size:
    if shape_problem(tuple(lengths)) is not None:
        raise ValueError(f"an invalid size {lengths!r:.80}")
    return torch.Size(lengths)


def _device(kind: str, index: int | None = None) -> torch.device:
    if re.fullmatch(r"[a-z]+(:\d+)?", kind) is None:
        raise ValueError(f"an invalid device {kind!r:.40}")
    return torch.device(kind) if index is None else torch.device(kind, index)


_ALLOWED: Mapping[str, object] = {
    **PLAIN,
    **{f"torch.{name}": _StorageType(dtype) for name, dtype in _STORAGES.items()},
    **{f"{dtype}": dtype for dtype in _STORAGES.values()},
    **{f"torch.{name}": getattr(torch, name) for name in _OTHER_DTYPES},
    "torch.storage.UntypedStorage": _StorageType(torch.uint8),
    "torch.Size": _size,
    "torch.device": _device,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor_v3": _tensor_of_dtype,
    "torch._utils._rebuild_parameter": lambda tensor, *_: tensor,
}
