"""Sealed folders: tensors and facts that are whole and unaltered, or refused by name.

Every file is written under another name in the same folder, synced to the disk and renamed. The manifest with the
checksums comes last: a folder without one was never finished, whatever killed the process.
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
from normscope.runs.manifest import MANIFEST, open_verified, read_manifest, read_verified, write_manifest
from normscope.runs.tensor_specs import Spec
from normscope.storage.files import cannot_write
from normscope.storage.json_files import parse_json
from normscope.storage.safe_folder import OwnFolder

FACTS = "state.json"
_FIX = "use another checkpoint"
_HEADER = 2**20
"""The most bytes that a file of tensors may have besides their numbers."""
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


def seal(
    folder: Path | OwnFolder,
    tensors: Mapping[str, Mapping[str, Tensor]],
    facts: Mapping[str, Any],
    config: str | None = None,
) -> None:
    """Write `name.safetensors` for each set of tensors, the facts as JSON, and last the manifest.

    After an error nothing of the folder is left, and no other one was touched.

    Args:
        folder: where; made if it isn't there.
        tensors, facts: what to keep.
        config: the checksum of the config.json of the run that it belongs to.
    """
    folder = _own(folder)
    existed = folder.is_folder()
    try:
        folder.make()
        folder.remove(MANIFEST)  # while it is written anew it is not whole
        for name, group in tensors.items():
            _write_tensors(folder, f"{name}.safetensors", group)
        folder.write(FACTS, json.dumps(facts, indent=1, allow_nan=False).encode())
        write_manifest(folder, [*(f"{name}.safetensors" for name in tensors), FACTS], config)
        _outer(folder).sync()
    except BaseException as error:
        if not existed:
            with suppress(OSError):
                _outer(folder).remove(folder.path.name)
        if isinstance(error, OSError) and not isinstance(error, FileError):
            raise cannot_write(folder.path, error) from error
        raise


def is_sealed(folder: Path | OwnFolder) -> bool:
    """Whether it was finished; not whether it is still what it was."""
    return _own(folder).has(MANIFEST)


class Sealed:
    """A sealed folder, open for reading. Only what is asked for is read and checked.

    Args:
        folder: where.
        config: the checksum of the config.json of the run that it has to belong to; None for any.
        fix: what the user can do if it is damaged.
    """

    def __init__(self, folder: Path | OwnFolder, config: str | None = None, fix: str = _FIX) -> None:
        self.folder, self._fix = _own(folder), fix
        self._manifest = read_manifest(self.folder, fix)
        if config is not None and self._manifest.config != config:
            raise CheckpointError(
                f"{self.folder} belongs to another run: it was saved with another config.json\nfix: {self._fix}"
            )

    @property
    def groups(self) -> list[str]:
        """The names of the sets of tensors."""
        return [name.removesuffix(".safetensors") for name in self._manifest.files if name.endswith(".safetensors")]

    def facts(self, schema: type[T]) -> T:
        data = read_verified(self.folder, FACTS, self._manifest.files, self._fix)
        name = str(self.folder.path / FACTS)
        return parse_json(data, schema, name=name, fix=self._fix, error=CheckpointError)

    def tensors(self, group: str, wanted: Mapping[str, Spec] | None = None) -> dict[str, Tensor]:
        """A set of tensors; with `wanted`, refused before they are loaded unless names, shapes and types are these."""
        name, files = f"{group}.safetensors", self._manifest.files
        path = self.folder.path / name
        if wanted is not None and name in files:
            most = _HEADER + sum(_bytes(spec) + 256 for spec in wanted.values())
            if files[name].bytes > most:
                raise CheckpointError(
                    f"{path} does not fit this run: it has {files[name].bytes} bytes, and at most {most} are expected"
                    f"\nfix: {self._fix}"
                )
        with open_verified(self.folder, name, files, self._fix) as file:
            if not os.path.samestat(os.fstat(file.fileno()), os.stat(path, follow_symlinks=False)):
                raise CheckpointError(f"{path} was replaced while it was read\nfix: {self._fix}")
            try:
                if wanted is not None:
                    self._check_header(path, wanted)
                return load_file(path)
            except (SafetensorError, OSError) as error:
                raise CheckpointError(f"{path} cannot be read: {error}\nfix: {self._fix}") from error

    def _check_header(self, path: Path, wanted: Mapping[str, Spec]) -> None:
        with safe_open(path, framework="pt") as file:
            names = set(file.keys())
            problems = [f"{name} is missing" for name in sorted(wanted.keys() - names)]
            problems += [f"{name} is not known" for name in sorted(names - wanted.keys())]
            for name in sorted(names & wanted.keys()):
                header, (shape, dtype) = file.get_slice(name), wanted[name]
                found = tuple(header.get_shape()), header.get_dtype()
                if found != (shape, _DTYPES[dtype]):
                    problems.append(f"{name} is {found[1]} of {found[0]} instead of {_DTYPES[dtype]} of {shape}")
        if problems:
            more = f", and {len(problems) - 4} more" if len(problems) > 4 else ""
            raise CheckpointError(f"{path} does not fit this run: {', '.join(problems[:4])}{more}\nfix: {self._fix}")


def unseal(folder: Path | OwnFolder) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """The tensors and the facts of a sealed folder, after every byte was checked."""
    found = Sealed(folder)
    return {group: found.tensors(group) for group in found.groups}, found.facts(dict[str, Any])


def checksums(folder: Path | OwnFolder) -> dict[str, str]:
    """What the manifest says of each file."""
    return {name: entry.sha256 for name, entry in read_manifest(_own(folder), _FIX).files.items()}


def _own(folder: Path | OwnFolder) -> OwnFolder:
    return folder if isinstance(folder, OwnFolder) else OwnFolder(folder)


def _outer(folder: OwnFolder) -> OwnFolder:
    return OwnFolder(folder.root, *folder.parts[:-1]) if folder.parts else OwnFolder(folder.root.parent)


def _bytes(spec: Spec) -> int:
    shape, dtype = spec
    size = dtype.itemsize
    for length in shape:
        size *= length
    return size


def _write_tensors(folder: OwnFolder, name: str, tensors: Mapping[str, Tensor]) -> None:
    # The library writes to a path; nobody can have put a link under a name that is drawn only now.
    part = f".{name}.{secrets.token_hex(8)}.part"
    path = folder.path / part
    try:
        path.touch(exist_ok=False)
        usual = path.stat().st_mode  # whoever may read other files may read this one, which the library would forbid
        save_file(_apart(tensors), path)
        path.chmod(usual)
        with path.open("r+b") as file:  # Windows syncs only what may be written
            os.fsync(file.fileno())
        folder.rename(part, name)
    except SafetensorError as error:
        raise cannot_write(folder.path / name, error) from error
    finally:
        with suppress(OSError):
            path.unlink()


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Each tensor in memory of its own: the format has no views, and two names for one place would be refused."""
    found: dict[str, Tensor] = {}
    places = set()
    for name, tensor in tensors.items():
        tensor = tensor.detach().contiguous()
        place = tensor.untyped_storage().data_ptr()
        found[name] = tensor.clone() if place in places else tensor
        places.add(place)
    return found
