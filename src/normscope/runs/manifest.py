"""manifest.json: the files of a folder and their checksums. A folder with a manifest is complete.

The manifest has a checksum of its own, so that damage to it isn't attributed to the files it lists.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, BinaryIO

from msgspec import Meta

from normscope.data.corpus_record import Sha256
from normscope.errors import CheckpointError, FileError
from normscope.storage.file_format import FileFormat, rename_fields
from normscope.storage.files import with_checksum
from normscope.storage.json_files import SMALL_FILE_BYTES, StrictStruct, convert, parse_json, without_checksum
from normscope.storage.safe_folder import SafeFolder

MANIFEST_NAME = "manifest.json"
FORMAT = FileFormat(3, {2: lambda manifest: rename_fields(manifest, {"config": "config_sha256"})})
_CHUNK = 2**20

Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]+\.(json|safetensors)$")]


class FileEntry(StrictStruct):
    """Size and checksum of a file."""

    bytes: Annotated[int, Meta(ge=0)]
    sha256: Sha256


class Manifest(StrictStruct):
    """Schema of manifest.json.

    Args:
        format: Version of the file format.
        files: The files of the folder.
        config_sha256: In a checkpoint, the checksum of the config.json of its run.
    """

    format: int
    files: dict[Name, FileEntry]
    config_sha256: Sha256 | None


def write_manifest(folder: SafeFolder, names: Iterable[str], config_sha256: str | None = None) -> None:
    """Write the manifest of these files. Call it last: a folder without a manifest is incomplete."""
    files = {}
    for name in names:
        with folder.open(name) as file:
            files[name] = _file_entry(file)
    content = with_checksum({"format": FORMAT.version, "files": files, "config_sha256": config_sha256})
    folder.write(MANIFEST_NAME, json.dumps(content, indent=1).encode())
    folder.sync()


def read_manifest(folder: SafeFolder, fix: str) -> Manifest:
    """Read the manifest of a folder; raises if it is damaged or has another format."""
    path = folder.path / MANIFEST_NAME
    if not folder.exists():
        raise CheckpointError(f"the folder {folder} does not exist\nfix: {fix}")
    if not folder.has(MANIFEST_NAME):
        raise CheckpointError(f"{folder} is incomplete: it has no {MANIFEST_NAME}\nfix: {fix}")
    content = parse_json(folder.read(MANIFEST_NAME), dict[str, Any], name=str(path), fix=fix, error=CheckpointError)
    content = without_checksum(content, name=str(path), fix=fix, error=CheckpointError)
    content = FORMAT.migrate(content, name=str(path), error=CheckpointError)
    return convert(content, Manifest, name=str(path), fix=fix, error=CheckpointError)


def open_verified(folder: SafeFolder, name: str, files: Mapping[str, FileEntry], fix: str) -> BinaryIO:
    """Open a file listed in a manifest, after verifying its size and checksum."""
    path = folder.path / name
    if name not in files:
        raise CheckpointError(f"{folder.path / MANIFEST_NAME} does not list {name}\nfix: {fix}")
    if not folder.has(name):
        raise CheckpointError(f"{path} is listed in the manifest but missing\nfix: {fix}")
    try:
        file, expected = folder.open(name), files[name]
        try:
            size = os.fstat(file.fileno()).st_size
            if size != expected.bytes:
                raise CheckpointError(f"{path} is damaged: it has {size} bytes, expected {expected.bytes}\nfix: {fix}")
            if _file_entry(file) != {"bytes": expected.bytes, "sha256": expected.sha256}:
                raise CheckpointError(f"{path} is damaged: its checksum does not match the manifest\nfix: {fix}")
            file.seek(0)
        except BaseException:
            file.close()
            raise
    except OSError as error:
        if isinstance(error, FileError):
            raise
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}\nfix: {fix}") from error
    return file


def read_verified(folder: SafeFolder, name: str, files: Mapping[str, FileEntry], fix: str) -> bytes:
    """Read a small file listed in a manifest."""
    if name in files and files[name].bytes > SMALL_FILE_BYTES:
        raise CheckpointError(
            f"{folder.path / MANIFEST_NAME} says that {name} has {files[name].bytes} bytes\nfix: {fix}"
        )
    with open_verified(folder, name, files, fix) as file:
        return file.read()


def _file_entry(file: BinaryIO) -> dict[str, Any]:
    digest = hashlib.sha256()
    while data := file.read(_CHUNK):
        digest.update(data)
    return {"bytes": file.tell(), "sha256": digest.hexdigest()}
