"""Folders of tensors and JSON state with a manifest of checksums.

Every file is written to a temporary file, fsynced and renamed. The manifest with the checksums comes last: a folder
without one is incomplete.
"""

import json
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from normscope.errors import CheckpointError, FileError
from normscope.runs.manifest import MANIFEST_NAME, open_verified, read_manifest, read_verified, write_manifest
from normscope.runs.tensor_specs import TensorSpec
from normscope.storage.file_format import FileFormat
from normscope.storage.files import write_error
from normscope.storage.json_files import convert, parse_json
from normscope.storage.safe_folder import SafeFolder

STATE_NAME = "state.json"
STATE_FORMAT = FileFormat(1)
_FIX = "use another checkpoint"
_MAX_HEADER_BYTES = 2**20
"""Maximum size of a safetensors header."""
_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}

T = TypeVar("T")


def write_folder(
    folder: Path | SafeFolder,
    tensors: Mapping[str, Mapping[str, Tensor]],
    state: Mapping[str, Any],
    config_sha256: str | None = None,
) -> None:
    """Write one `name.safetensors` per group of tensors, state.json, and last the manifest.

    On an error, a new folder is removed again.

    Args:
        folder: The folder to write; created if necessary.
        tensors: Tensors by group and name.
        state: Contents of state.json.
        config_sha256: Checksum of the config.json of the run it belongs to.
    """
    folder = SafeFolder.of(folder)
    existed = folder.exists()
    try:
        folder.create()
        folder.remove(MANIFEST_NAME)  # incomplete while it is being rewritten
        for name, group in tensors.items():
            _write_tensors(folder, f"{name}.safetensors", group)
        folder.write(
            STATE_NAME, json.dumps({"format": STATE_FORMAT.version, **state}, indent=1, allow_nan=False).encode()
        )
        write_manifest(folder, [*(f"{name}.safetensors" for name in tensors), STATE_NAME], config_sha256)
        folder.parent.sync()
    except BaseException as error:
        if not existed:
            with suppress(OSError):
                folder.parent.remove(folder.path.name)
        if isinstance(error, OSError) and not isinstance(error, FileError):
            raise write_error(folder.path, error) from error
        raise


def is_complete(folder: Path | SafeFolder) -> bool:
    """Whether the folder was written completely; its checksums are not verified."""
    return SafeFolder.of(folder).has(MANIFEST_NAME)


class ChecksummedFolder:
    """A checksummed folder, open for reading. Files are read and verified on demand.

    Args:
        folder: The folder.
        config_sha256: Required checksum of the config.json of its run; None accepts any.
        fix: Fix to suggest if the folder is damaged.
    """

    def __init__(self, folder: Path | SafeFolder, config_sha256: str | None = None, fix: str = _FIX) -> None:
        self.folder, self._fix = SafeFolder.of(folder), fix
        self._manifest = read_manifest(self.folder, fix)
        if config_sha256 is not None and self._manifest.config_sha256 != config_sha256:
            raise CheckpointError(
                f"{self.folder} belongs to another run: it was saved with a different config.json\nfix: {self._fix}"
            )

    @property
    def groups(self) -> list[str]:
        """Names of the groups of tensors."""
        return [name.removesuffix(".safetensors") for name in self._manifest.files if name.endswith(".safetensors")]

    def load(self) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
        """Load all tensors, by group and name, and the state."""
        return {group: self.tensors(group) for group in self.groups}, self.state(dict[str, Any])

    def state(self, schema: type[T]) -> T:
        """Load state.json, without its format number."""
        data = read_verified(self.folder, STATE_NAME, self._manifest.files, self._fix)
        name = str(self.folder.path / STATE_NAME)
        content = parse_json(data, dict[str, Any], name=name, fix=self._fix, error=CheckpointError)
        content = STATE_FORMAT.migrate(content, name=name, error=CheckpointError)
        del content["format"]
        return convert(content, schema, name=name, fix=self._fix, error=CheckpointError)

    def tensors(self, group: str, expected: Mapping[str, TensorSpec] | None = None) -> dict[str, Tensor]:
        """Load a group of tensors; with `expected`, names, shapes and dtypes are checked before anything is loaded."""
        name, files = f"{group}.safetensors", self._manifest.files
        path = self.folder.path / name
        if expected is not None and name in files:
            limit = _MAX_HEADER_BYTES + sum(_spec_bytes(spec) + 256 for spec in expected.values())
            if files[name].bytes > limit:
                raise CheckpointError(
                    f"{path} does not match this run: it has {files[name].bytes} bytes, expected at most {limit}"
                    f"\nfix: {self._fix}"
                )
        with open_verified(self.folder, name, files, self._fix) as file:
            if not os.path.samestat(os.fstat(file.fileno()), os.stat(path, follow_symlinks=False)):
                raise CheckpointError(f"{path} was replaced while it was read\nfix: {self._fix}")
            try:
                if expected is not None:
                    self._check_header(path, expected)
                return load_file(path)
            except (SafetensorError, OSError) as error:
                raise CheckpointError(f"{path} cannot be read: {error}\nfix: {self._fix}") from error

    def _check_header(self, path: Path, expected: Mapping[str, TensorSpec]) -> None:
        with safe_open(path, framework="pt") as file:
            names = set(file.keys())
            problems = [f"{name} is missing" for name in sorted(expected.keys() - names)]
            problems += [f"{name} is unexpected" for name in sorted(names - expected.keys())]
            for name in sorted(names & expected.keys()):
                header, (shape, dtype) = file.get_slice(name), expected[name]
                found = tuple(header.get_shape()), header.get_dtype()
                if found != (shape, _DTYPES[dtype]):
                    problems.append(f"{name} has shape {found[0]} ({found[1]}), expected {shape} ({_DTYPES[dtype]})")
        if problems:
            more = f", and {len(problems) - 4} more" if len(problems) > 4 else ""
            raise CheckpointError(f"{path} does not match this run: {', '.join(problems[:4])}{more}\nfix: {self._fix}")


def read_folder(folder: Path | SafeFolder) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """Load all tensors and the state of a folder, after verifying every byte."""
    return ChecksummedFolder(folder).load()


def checksums(folder: Path | SafeFolder) -> dict[str, str]:
    """SHA-256 of each file, from the manifest."""
    return {name: entry.sha256 for name, entry in read_manifest(SafeFolder.of(folder), _FIX).files.items()}


def _spec_bytes(spec: TensorSpec) -> int:
    shape, dtype = spec
    size = dtype.itemsize
    for dim in shape:
        size *= dim
    return size


def _write_tensors(folder: SafeFolder, name: str, tensors: Mapping[str, Tensor]) -> None:
    # safetensors writes to a path: a random name cannot have been replaced by a link.
    part = f".{name}.{secrets.token_hex(8)}.part"
    path = folder.path / part
    try:
        path.touch(exist_ok=False)
        mode = path.stat().st_mode  # safetensors would set a more restrictive mode
        save_file(_unshared(tensors), path)
        path.chmod(mode)
        with path.open("r+b") as file:  # Windows fsyncs only writable files
            os.fsync(file.fileno())
        folder.rename(part, name)
    except SafetensorError as error:
        raise write_error(folder.path / name, error) from error
    finally:
        with suppress(OSError):
            path.unlink()


def _unshared(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors that share storage: safetensors rejects shared storage."""
    unshared: dict[str, Tensor] = {}
    pointers = set()
    for name, tensor in tensors.items():
        tensor = tensor.detach().contiguous()
        pointer = tensor.untyped_storage().data_ptr()
        unshared[name] = tensor.clone() if pointer in pointers else tensor
        pointers.add(pointer)
    return unshared
