"""Folders with a manifest: tensors, JSON files and their checksums.

Every file is written to a temporary file, fsynced and renamed. manifest.json with the checksums comes last: a folder
without one is incomplete. The manifest has its own checksum, so that damage to it isn't attributed to the files
it lists.
"""

import hashlib
import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Annotated, Any, TypeVar

from msgspec import Meta
from safetensors import SafetensorError, safe_open
from torch import Tensor

from normscope.data.corpus import Sha256
from normscope.errors import CheckpointError, FileError, NormscopeError
from normscope.interop.files.safetensors_file import DTYPE_NAMES, safetensors_bytes
from normscope.runtime.ranks import ALONE, Ranks
from normscope.storage.files import with_checksum, write_errors
from normscope.storage.json_files import SMALL_FILE_BYTES, FileFormat, JsonSource, StrictStruct, to_json_bytes
from normscope.storage.safe_folder import SafeFolder
from normscope.storage.tensor_spec import TensorSpec

MANIFEST_NAME, STATE_NAME = "manifest.json", "state.json"
MANIFEST_FORMAT, STATE_FORMAT = FileFormat(1), FileFormat(1)
_SUFFIX = ".safetensors"
_PART = re.compile(r"(-[0-9]+-of-[0-9]+)?\.safetensors$")
_FIX = "use another checkpoint"
_MAX_HEADER_BYTES = 2**20
"""Maximum size of a safetensors header."""

T = TypeVar("T")
FileName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]+\.(json|safetensors)$")]


class FileEntry(StrictStruct):
    """Size and checksum of a file."""

    bytes: Annotated[int, Meta(ge=0)]
    sha256: Sha256


class Manifest(StrictStruct):
    """Schema of manifest.json.

    Args:
        files: The files of the folder.
        config_sha256: In a checkpoint, the checksum of the config.json of its run.
    """

    files: dict[FileName, FileEntry]
    config_sha256: Sha256 | None


def write_manifest(
    folder: SafeFolder,
    names: Iterable[str],
    config_sha256: str | None = None,
    hashed: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """Write the manifest of these files, and of those that are `hashed` already. A folder without one is incomplete."""
    files = {**(hashed or {}), **hash_files(folder, names)}
    content = {"format": MANIFEST_FORMAT.version, "files": files, "config_sha256": config_sha256}
    folder.write(MANIFEST_NAME, to_json_bytes(with_checksum(content)))
    folder.sync()


def hash_files(folder: SafeFolder, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The entries of files in a manifest."""
    files = {}
    for name in names:
        with folder.open(name) as file:
            files[name] = {"bytes": os.fstat(file.fileno()).st_size, "sha256": _sha256(file)}
    return files


def write_folder(
    folder: Path | SafeFolder,
    tensors: Mapping[str, Mapping[str, Tensor]],
    state: Mapping[str, Any],
    config_sha256: str | None = None,
    ranks: Ranks = ALONE,
) -> None:
    """Write one `name.safetensors` per group of tensors, state.json, and last the manifest.

    On an error, a new folder is removed again. With several ranks, each writes its own tensors of every group to a file
    of its own, and the manifest is written after all of them.

    Args:
        folder: The folder to write; created if necessary.
        tensors: Tensors by group and name.
        state: Contents of state.json.
        config_sha256: Checksum of the config.json of the run it belongs to.
        ranks: The processes that write the folder together.
    """
    folder = SafeFolder.of(folder)
    existed, is_written = folder.exists(), False
    try:
        with write_errors(folder.path):
            if ranks.is_main:
                folder.create()
                folder.remove(MANIFEST_NAME)  # incomplete while it is being rewritten
            ranks.barrier()
            hashed = _write_parts(folder, tensors, ranks)
            if ranks.is_main:
                folder.write(STATE_NAME, to_json_bytes({"format": STATE_FORMAT.version, **state}))
                write_manifest(folder, [STATE_NAME], config_sha256, hashed)
                folder.parent.sync()
                is_written = True  # whatever happens to the other ranks
            ranks.barrier()
    except BaseException:
        if ranks.is_main and not existed and not is_written:
            with suppress(OSError):
                folder.remove(MANIFEST_NAME)  # first: an interrupted removal must not leave what looks complete
                folder.parent.remove(folder.path.name)
        raise


def _write_parts(
    folder: SafeFolder, tensors: Mapping[str, Mapping[str, Tensor]], ranks: Ranks
) -> dict[str, dict[str, Any]]:
    """Write and hash the tensors of this rank; returns the entries of all ranks' files in the manifest."""
    with ranks.fail_together(f"another rank could not write its part of {folder}"):
        names = {group: _file_name(group, ranks.rank, ranks.size) for group in tensors}
        for group, name in names.items():
            folder.write(name, safetensors_bytes(tensors[group]))
        text = json.dumps(hash_files(folder, names.values()))
    return {name: entry for part in ranks.gather(text) for name, entry in json.loads(part).items()}


def _file_name(group: str, rank: int, ranks: int) -> str:
    """The file of a group of tensors, or a rank's part of it."""
    return f"{group}{_SUFFIX}" if ranks == 1 else f"{group}-{rank}-of-{ranks}{_SUFFIX}"


def is_complete(folder: Path | SafeFolder) -> bool:
    """Whether the folder was written completely; its checksums are not verified."""
    return SafeFolder.of(folder).has(MANIFEST_NAME)


class ChecksummedFolder:
    """A folder with a manifest, open for reading. Files are read and verified on demand.

    Args:
        folder: The folder.
        config_sha256: Required checksum of the config.json of its run; None accepts any.
        fix: Fix to suggest if the folder is damaged.
    """

    def __init__(self, folder: Path | SafeFolder, config_sha256: str | None = None, fix: str = _FIX) -> None:
        self.folder, self._fix, self._is_verified = SafeFolder.of(folder), fix, False
        if not self.folder.exists():
            raise CheckpointError(f"the folder {self.folder} does not exist\nfix: {fix}")
        if not self.folder.has(MANIFEST_NAME):
            raise CheckpointError(f"{self.folder} is incomplete: it has no {MANIFEST_NAME}\nfix: {fix}")
        data = self.folder.read(MANIFEST_NAME)
        manifest = self.source(MANIFEST_NAME).parse(data, Manifest, checksum=True, file_format=MANIFEST_FORMAT)
        self.files = manifest.files
        if config_sha256 is not None and manifest.config_sha256 != config_sha256:
            raise CheckpointError(
                f"{self.folder} belongs to another run: it was saved with a different config.json\nfix: {fix}"
            )

    def source(self, name: str) -> JsonSource:
        """A file of the folder, as errors show it."""
        return JsonSource(self.folder.path / name, self._fix, CheckpointError)

    @property
    def groups(self) -> list[str]:
        """Names of the groups of tensors."""
        return list(dict.fromkeys(_PART.sub("", name) for name in self.files if name.endswith(_SUFFIX)))

    def _parts(self, group: str) -> list[str]:
        """The files of a group of tensors: one, or one of each rank that wrote it."""
        parts = [name for name in self.files if name.endswith(_SUFFIX) and _PART.sub("", name) == group]
        return parts or [group + _SUFFIX]

    def verify(self, ranks: Ranks) -> None:
        """Verify all files, each rank some of them, so that none has to hash all when it opens them."""
        with ranks.fail_together(f"{self.folder} is damaged"):
            for name in list(self.files)[ranks.rank :: ranks.size]:
                self.open(name).close()
        self._is_verified = True

    def open(self, name: str) -> BufferedReader:
        """Open a file after verifying its size and checksum."""
        source = self.source(name)
        if name not in self.files:
            raise self.source(MANIFEST_NAME).problem(f"does not list {name}")
        if not self.folder.has(name):
            raise source.problem("is listed in the manifest but missing")
        file, expected = self.folder.open(name), self.files[name]
        try:
            size = os.fstat(file.fileno()).st_size
            if size != expected.bytes:
                raise source.problem(f"is damaged: it has {size} bytes, expected {expected.bytes}")
            if not self._is_verified and _sha256(file) != expected.sha256:
                raise source.problem("is damaged: its checksum does not match the manifest")
            file.seek(0)
        except BaseException as error:
            file.close()
            if isinstance(error, OSError) and not isinstance(error, FileError):
                raise source.problem(f"cannot be read: {error.strerror or error}") from error
            raise
        return file

    def verified(self, name: str) -> Path:
        """Path of a file, after verifying it."""
        with self.open(name):
            return self.folder.path / name

    def read(self, name: str) -> bytes:
        """Read a small file after verifying it."""
        if name in self.files and self.files[name].bytes > SMALL_FILE_BYTES:
            raise self.source(MANIFEST_NAME).problem(f"says that {name} has {self.files[name].bytes} bytes")
        with self.open(name) as file:
            return file.read()

    def load(self) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
        """Load all tensors, by group and name, and the state."""
        return {group: self.tensors(group) for group in self.groups}, self.state(dict[str, Any])

    def state(self, schema: type[T]) -> T:
        """Load state.json, without its format number."""
        return self.source(STATE_NAME).parse(self.read(STATE_NAME), schema, file_format=STATE_FORMAT)

    def tensors(
        self, group: str, expected: Mapping[str, TensorSpec] | None = None, only: Collection[str] | None = None
    ) -> dict[str, Tensor]:
        """Load a group of tensors.

        Args:
            group: Name of the group.
            expected: Names, shapes and dtypes of all its tensors, which are checked before anything is loaded.
            only: Names of the tensors to load; by default all.
        """
        parts = self._parts(group)
        if expected is not None:
            limit = _MAX_HEADER_BYTES + sum(spec.nbytes + 256 for spec in expected.values())
            for name in parts:
                if name in self.files and self.files[name].bytes > limit:
                    size = self.files[name].bytes
                    raise self.source(name).problem(
                        f"does not match this run: it has {size} bytes, expected at most {limit}"
                    )
        with ExitStack() as stack:
            opened = {name: stack.enter_context(self._open_tensors(name)) for name in parts}
            owners = {tensor: name for name, file in opened.items() for tensor in file.keys()}  # noqa: SIM118
            if problems := [] if expected is None else _header_problems(opened, owners, expected):
                more = f", and {len(problems) - 4} more" if len(problems) > 4 else ""
                found = f"does not match this run: {', '.join(problems[:4])}{more}"
                raise self.source(parts[0] if len(parts) == 1 else f"{group}-*{_SUFFIX}").problem(found)
            # In the order of the file: a set has another one in every process, and ranks have to agree on it.
            wanted = [tensor for tensor in owners if only is None or tensor in only]
            return {tensor: opened[owners[tensor]].get_tensor(tensor) for tensor in wanted}

    @contextmanager
    def _open_tensors(self, name: str) -> Iterator[Any]:
        """Open a file of tensors after verifying it."""
        source, path = self.source(name), self.folder.path / name
        with self.open(name) as file:
            if not os.path.samestat(os.fstat(file.fileno()), os.stat(path, follow_symlinks=False)):
                raise source.problem("was replaced while it was read")
            try:
                with safe_open(path, framework="pt") as tensors:
                    yield tensors
            except (SafetensorError, OSError) as error:
                if isinstance(error, NormscopeError):
                    raise
                raise source.problem(f"cannot be read: {error}") from error


def checksums(folder: Path | SafeFolder) -> dict[str, str]:
    """SHA-256 of each file, from the manifest."""
    return {name: entry.sha256 for name, entry in ChecksummedFolder(folder).files.items()}


def _header_problems(
    files: Mapping[str, Any], owners: Mapping[str, str], expected: Mapping[str, TensorSpec]
) -> list[str]:
    """How the headers of safetensors files differ from the expected tensors."""
    problems = [f"{name} is missing" for name in sorted(expected.keys() - owners.keys())]
    problems += [f"{name} is unexpected" for name in sorted(owners.keys() - expected.keys())]
    for name in sorted(owners.keys() & expected.keys()):
        header, (shape, dtype) = files[owners[name]].get_slice(name), expected[name]
        found = tuple(header.get_shape()), header.get_dtype()
        if found != (shape, DTYPE_NAMES[dtype]):
            problems.append(f"{name} has shape {found[0]} ({found[1]}), expected {shape} ({DTYPE_NAMES[dtype]})")
    return problems


def _sha256(file: BufferedReader) -> str:
    return hashlib.file_digest(file, "sha256").hexdigest()
