"""manifest.json: which files a folder has, and their checksums. A folder is whole when it has one.

The manifest carries a checksum of its own, so that damage to it isn't blamed on the files that it lists.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, BinaryIO

from msgspec import Meta

from normscope.data.corpus_record import Sha256
from normscope.errors import CheckpointError, FileError
from normscope.storage.files import signed
from normscope.storage.json_files import SMALL, Strict, convert, parse_json, unsigned
from normscope.storage.safe_folder import OwnFolder

MANIFEST = "manifest.json"
FORMAT = 2
_CHUNK = 2**20

Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]+\.(json|safetensors)$")]


class Entry(Strict):
    """A file as it was written."""

    bytes: Annotated[int, Meta(ge=0)]
    sha256: Sha256


class Manifest(Strict):
    """What manifest.json says.

    Args:
        files: the files of the folder.
        config: the checksum of the run's config.json, in the manifest of a checkpoint: which run it belongs to.
    """

    format: int
    files: dict[Name, Entry]
    config: Sha256 | None


def write_manifest(folder: OwnFolder, names: Iterable[str], config: str | None = None) -> None:
    """Write the manifest of these files. It comes last: a folder without one was never finished."""
    files = {}
    for name in names:
        with folder.open(name) as file:
            files[name] = _entry(file)
    content = signed({"format": FORMAT, "files": files, "config": config})
    folder.write(MANIFEST, json.dumps(content, indent=1).encode())
    folder.sync()


def read_manifest(folder: OwnFolder, fix: str) -> Manifest:
    """The manifest of a folder. One that is damaged, or of another format, is refused."""
    path = folder.path / MANIFEST
    if not folder.is_folder():
        raise CheckpointError(f"there is no folder {folder}\nfix: {fix}")
    if not folder.has(MANIFEST):
        raise CheckpointError(f"{folder} was never finished: it has no {MANIFEST}\nfix: {fix}")
    content = parse_json(folder.read(MANIFEST), dict[str, Any], name=str(path), fix=fix, error=CheckpointError)
    if content.get("format") != FORMAT:
        raise CheckpointError(f"{path} is not a manifest of format {FORMAT}\nfix: use the normscope that wrote it")
    content = unsigned(content, name=str(path), fix=fix, error=CheckpointError)
    return convert(content, Manifest, name=str(path), fix=fix, error=CheckpointError)


def open_verified(folder: OwnFolder, name: str, files: Mapping[str, Entry], fix: str) -> BinaryIO:
    """A file that a manifest lists, after each byte was checked."""
    path = folder.path / name
    if name not in files:
        raise CheckpointError(f"{folder.path / MANIFEST} does not list {name}\nfix: {fix}")
    if not folder.has(name):
        raise CheckpointError(f"{path} is missing, and the manifest names it\nfix: {fix}")
    try:
        file, wanted = folder.open(name), files[name]
        try:
            size = os.fstat(file.fileno()).st_size
            if size != wanted.bytes:
                raise CheckpointError(
                    f"{path} was cut short or grew: it has {size} bytes and was written with {wanted.bytes}\nfix: {fix}"
                )
            if _entry(file) != {"bytes": wanted.bytes, "sha256": wanted.sha256}:
                raise CheckpointError(
                    f"{path} was altered: its checksum is not the one it was written with\nfix: {fix}"
                )
            file.seek(0)
        except BaseException:
            file.close()
            raise
    except OSError as error:
        if isinstance(error, FileError):
            raise
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}\nfix: {fix}") from error
    return file


def read_verified(folder: OwnFolder, name: str, files: Mapping[str, Entry], fix: str) -> bytes:
    """The content of a small file that a manifest lists."""
    if name in files and files[name].bytes > SMALL:
        raise CheckpointError(f"{folder.path / MANIFEST} says that {name} has {files[name].bytes} bytes\nfix: {fix}")
    with open_verified(folder, name, files, fix) as file:
        return file.read()


def _entry(file: BinaryIO) -> dict[str, Any]:
    digest = hashlib.sha256()
    while data := file.read(_CHUNK):
        digest.update(data)
    return {"bytes": file.tell(), "sha256": digest.hexdigest()}
