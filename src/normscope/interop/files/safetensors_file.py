"""Read and write safetensors files: a JSON header with the dtype, shape and offsets of each tensor, then the data.

The header is checked completely before the first tensor is read: the data of its tensors must fill the rest of the
file, without gaps or overlaps.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from msgspec import Struct
from torch import Tensor

from normscope.checks import as_path
from normscope.errors import FileError, WeightsError
from normscope.interop.files.lazy_tensors import LazyTensors, tensor_specs
from normscope.interop.files.tensor_file import TensorFile, shape_problem
from normscope.storage.json_files import MIB, JsonSource, StrictStruct, read_json
from normscope.storage.tensor_spec import TensorSpec

SINGLE_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"
MAX_HEADER_BYTES = 2 * MIB
"""Limit of a header: about a hundred bytes for each of at most some thousands of tensors. Models with more are sharded,
and the worst content takes a quarter of a second to parse."""
MAX_TENSORS = 2**14
MAX_INDEX_BYTES = 4 * MIB
"""Limit of an index, which has about a hundred bytes per tensor."""
_FIX = "download it again, or save it again with save_pretrained or safetensors.torch.save_file"
_METADATA = "__metadata__"
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""The names of dtypes in a header."""
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class _Entry(StrictStruct):
    """Schema of a tensor in the header."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


class _Index(Struct):
    """Schema of model.safetensors.index.json: the file of each tensor."""

    weight_map: dict[str, str]


def open_safetensors(*paths: str | Path) -> LazyTensors:
    """Open one or more safetensors files; no two may have a tensor of the same name.

    >>> import tempfile
    >>> from safetensors.torch import save_file
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_file({"weight": torch.ones(2, 3)}, f"{folder}/layer.safetensors")
    ...     tensors = open_safetensors(f"{folder}/layer.safetensors")
    ...     tensors.specs["weight"].shape, tensors["weight"].sum().item()
    ((2, 3), 6.0)
    """
    files = [_open(as_path(path, "weights")) for path in paths]
    counts = Counter(name for file in files for name in file)
    for name, count in counts.items():
        if count > 1:
            raise WeightsError(f"{count} of the files have a tensor {name!r:.80}\nfix: {_FIX}")
    return LazyTensors.merge({name: file for file in files for name in file})


def safetensors_bytes(tensors: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    """Return the content of a safetensors file, piece by piece; only one tensor is looked up at a time.

    >>> tensors = {"weight": torch.ones(2, 3)}
    >>> from safetensors.torch import load
    >>> torch.equal(load(b"".join(safetensors_bytes(tensors)))["weight"], tensors["weight"])
    True
    """
    header: dict[str, Any] = {_METADATA: {"format": "pt"}}
    specs, end = tensor_specs(tensors), 0
    order = sorted(specs, key=lambda name: (-specs[name].dtype.itemsize, name))  # then all data is aligned
    for name in order:
        spec, start = specs[name], end
        end += spec.nbytes
        header[name] = {"dtype": DTYPE_NAMES[spec.dtype], "shape": spec.shape, "data_offsets": [start, end]}
    data = json.dumps(header, separators=(",", ":")).encode()
    data += b" " * (-len(data) % 8)
    yield len(data).to_bytes(8, "little") + data
    for name in order:
        yield tensors[name].detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def open_sharded(folder: str | Path) -> LazyTensors:
    """Open model.safetensors of a folder, or the shards that model.safetensors.index.json lists."""
    folder = as_path(folder, "a model's folder")
    index = folder / INDEX_NAME
    if not index.exists():
        if not (folder / SINGLE_NAME).exists():
            _refuse_pickles(folder)
            raise FileError(f"{folder} has neither {SINGLE_NAME} nor {INDEX_NAME}\nfix: name another folder")
        return _open(folder / SINGLE_NAME)
    weight_map = read_json(index, _Index, fix=_FIX, error=WeightsError, max_bytes=MAX_INDEX_BYTES).weight_map
    names = sorted(set(weight_map.values()))
    for name in names:
        if not re.fullmatch(r"\w[\w.-]*\.safetensors", name):
            raise WeightsError(f"{index} names {name!r:.80}, which is not a safetensors file beside it\nfix: {_FIX}")
    shards = {name: _open(folder / name) for name in names}  # in Hugging Face's cache, they are links to its blobs
    listed = set(weight_map.items())
    for tensor, name in sorted(listed ^ {(tensor, name) for name, shard in shards.items() for tensor in shard}):
        has, lacks = (index, folder / name) if (tensor, name) in listed else (folder / name, index)
        raise WeightsError(f"{has} lists {tensor!r:.80} in {name}, but {lacks} does not\nfix: {_FIX}")
    return LazyTensors.merge({tensor: shards[name] for tensor, name in weight_map.items()})


def _refuse_pickles(folder: Path) -> None:
    """Refuse a folder with pickles in place of safetensors: loading one can run arbitrary code."""
    suffixes = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in suffixes) if folder.is_dir() else []
    if pickles:
        raise WeightsError(
            f"refusing to load the pickle {folder / pickles[0]}, which can run arbitrary code: no {SINGLE_NAME}\n"
            f"fix: if you trust it, load it with transformers and call save_pretrained, which writes safetensors"
        )


def _open(path: Path) -> LazyTensors:
    file = TensorFile(path, _FIX)
    entries, start = _read_header(file)
    specs = {name: _spec(file, name, entry) for name, entry in entries.items()}
    _check_offsets(file, entries, start)
    return LazyTensors(specs, lambda name: file.tensor(start + entries[name].data_offsets[0], specs[name]))


def _read_header(file: TensorFile) -> tuple[dict[str, _Entry], int]:
    """The header, and where the data starts."""
    if file.size < 8:
        raise file.problem(f"is not a safetensors file: it has only {file.size} bytes")
    length = int.from_bytes(file.read(0, 8), "little")
    if length > min(file.size - 8, MAX_HEADER_BYTES):
        sizes = f"{length:,} bytes, the file has {file.size:,}, the limit is {MAX_HEADER_BYTES:,}"
        raise file.problem(f"is not a safetensors file: its header would have {sizes}")
    source = JsonSource(f"the header of {file.path}", file.fix, WeightsError)
    content = source.parse(file.read(8, length), dict[str, Any])
    source.convert(content.pop(_METADATA, {}), dict[str, str])
    if len(content) > MAX_TENSORS:
        raise file.problem(f"has {len(content):,} tensors, more than the limit of {MAX_TENSORS:,}")
    return source.convert(content, dict[str, _Entry]), 8 + length


def _spec(file: TensorFile, name: str, entry: _Entry) -> TensorSpec:
    problem = shape_problem(entry.shape)
    if problem is not None:
        raise file.problem(f"has a tensor {name!r:.80} with {problem}")
    if entry.dtype not in DTYPES:
        raise file.problem(f"has a tensor {name!r:.80} of the unsupported dtype {entry.dtype!r:.40}")
    spec, (first, last) = TensorSpec(entry.shape, DTYPES[entry.dtype]), entry.data_offsets
    if last - first != spec.nbytes:
        stored = f"{entry.dtype} of shape {list(entry.shape)} needs {spec.nbytes:,} bytes"
        raise file.problem(f"has a tensor {name!r:.80} at offsets {first} to {last}, but {stored}")
    return spec


def _check_offsets(file: TensorFile, entries: dict[str, _Entry], start: int) -> None:
    """Check that the tensors fill the data without gaps or overlaps."""
    end = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        first, last = entry.data_offsets
        if first != end:
            how = "overlaps the tensor before it" if first < end else "leaves a gap before it"
            raise file.problem(f"has a tensor {name!r:.80} that {how}: it starts at offset {first}, expected {end}")
        end = last
    if end != file.size - start:
        raise file.problem(f"has {file.size - start:,} bytes of data, but its header describes {end:,}")
