"""Sealed folders: tensors and facts that are whole and unaltered, or refused by name.

Every file is written under another name in the same folder, synced to the disk and renamed. The manifest with the
checksums comes last: a folder without one was never finished, whatever killed the process.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from normscope.errors import CheckpointError, FileError
from normscope.files import cannot_write, write_atomically
from normscope.json_files import read_json

MANIFEST = "manifest.json"
FACTS = "state.json"
_FORMAT = 1


def seal(folder: Path, tensors: Mapping[str, Mapping[str, Tensor]], facts: Mapping[str, Any]) -> None:
    """Write `name.safetensors` for each set of tensors, the facts as JSON, and last the manifest.

    After an error nothing of the folder is left, and no other one was touched.
    """
    existed = folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MANIFEST).unlink(missing_ok=True)  # while it is written anew it is not whole
        for name, group in tensors.items():
            _write_tensors(folder / f"{name}.safetensors", group)
        write_atomically(folder / FACTS, json.dumps(facts, indent=1))
        files = [*(f"{name}.safetensors" for name in tensors), FACTS]
        manifest = {"format": _FORMAT, "files": {name: _fingerprint(folder / name) for name in files}}
        write_atomically(folder / MANIFEST, json.dumps(manifest, indent=1))
        _sync_folder(folder)
        _sync_folder(folder.parent)
    except BaseException as error:
        if not existed:
            shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError) and not isinstance(error, FileError):
            raise cannot_write(folder, error) from error
        raise


def is_sealed(folder: Path) -> bool:
    """Whether it was finished; not whether it is still what it was."""
    return (folder / MANIFEST).is_file()


def unseal(folder: Path) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """The tensors and the facts of a sealed folder, after every byte was checked."""
    names = _verified_names(folder)
    tensors = {}
    for name in names:
        if name.endswith(".safetensors"):
            try:
                tensors[name.removesuffix(".safetensors")] = load_file(folder / name)
            except (SafetensorError, OSError) as error:
                raise CheckpointError(f"{folder / name} cannot be read: {error}") from error
    return tensors, _read_json(folder / FACTS)


def checksums(folder: Path) -> dict[str, str]:
    """What the manifest says of each file."""
    return {name: entry["sha256"] for name, entry in _manifest(folder).items()}


def _verified_names(folder: Path) -> list[str]:
    manifest = _manifest(folder)
    for name in manifest:
        _verify(folder, name, manifest)
    return list(manifest)


def _manifest(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise CheckpointError(f"there is no folder {folder}")
    if not is_sealed(folder):
        raise CheckpointError(f"{folder} was never finished: it has no {MANIFEST}")
    content = _read_json(folder / MANIFEST)
    files = content.get("files")
    if content.get("format") != _FORMAT or not isinstance(files, dict) or FACTS not in files:
        raise CheckpointError(
            f"{folder / MANIFEST} is not a manifest of format {_FORMAT}\nfix: use the normscope that wrote it"
        )
    for name, entry in files.items():
        if not isinstance(entry, dict) or entry.keys() != {"bytes", "sha256"}:
            raise CheckpointError(f"{folder / MANIFEST} is damaged: it says {entry!r:.60} of {name}")
    return files


def _verify(folder: Path, name: str, manifest: Mapping[str, Any]) -> None:
    path, wanted = folder / name, manifest[name]
    try:
        found = _fingerprint(path)
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing, and the manifest names it") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    if found["bytes"] != wanted["bytes"]:
        raise CheckpointError(
            f"{path} was cut short or grew: it has {found['bytes']} bytes and was written with {wanted['bytes']}"
        )
    if found != wanted:
        raise CheckpointError(f"{path} was altered: its checksum is not the one it was written with")


def _write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    part = path.with_name(f".{path.name}.part")
    try:
        part.touch()
        usual = part.stat().st_mode  # whoever may read other files may read this one, which the library would forbid
        save_file(_apart(tensors), part)
        part.chmod(usual)
        with part.open("r+b") as file:  # Windows syncs only what may be written
            os.fsync(file.fileno())
        part.replace(path)
    except SafetensorError as error:
        raise cannot_write(path, error) from error
    finally:
        with suppress(OSError):
            part.unlink()


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


def _fingerprint(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"bytes": file.tell(), "sha256": digest}


def _read_json(path: Path) -> dict[str, Any]:
    return read_json(path, dict[str, Any], fix="use another checkpoint", error=CheckpointError)


def _sync_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk, as fsync does the bytes of a file."""
    with suppress(OSError):  # not every system lets a folder be opened; the names are then the system's care
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
