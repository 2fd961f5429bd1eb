"""Checksummed folders: complete and unchanged, or an error that names the file; a failed write loses nothing."""

import json
import os
import stat
import subprocess
from io import BufferedReader
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from normscope.errors import CheckpointError, FileError, RankError
from normscope.interop.files.safetensors_file import safetensors_bytes
from normscope.runs import checksummed_folder
from normscope.runs.checksummed_folder import MANIFEST_NAME, ChecksummedFolder, hash_files, is_complete
from normscope.runtime.ranks import Ranks
from normscope.storage.safe_folder import SafeFolder
from tests.runs.tampering import rewrite, rewrite_manifest
from tests.support import file_size_limit, randn

TENSORS = {"model": {"a": randn(3, 4, seed=0), "b": torch.arange(5)}, "rng": {"torch": torch.get_rng_state()}}


def read_folder(folder: Path) -> tuple[dict[str, dict[str, torch.Tensor]], dict[str, Any]]:
    return ChecksummedFolder(folder).load()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "00000007"
    checksummed_folder.write_folder(path, TENSORS, {"step": 7})
    return path


def test_a_folder_round_trips(folder: Path) -> None:
    tensors, facts = read_folder(folder)
    assert facts == {"step": 7}
    assert tensors.keys() == TENSORS.keys()
    for name, group in TENSORS.items():
        for key, tensor in group.items():
            assert torch.equal(tensors[name][key], tensor)


def test_views_of_one_tensor_are_saved_separately(tmp_path: Path) -> None:
    base = randn(4, 6, seed=1)
    checksummed_folder.write_folder(tmp_path / "x", {"model": {"top": base[:2], "turned": base.T}}, {})
    tensors, _ = read_folder(tmp_path / "x")
    assert torch.equal(tensors["model"]["turned"], base.T)
    assert torch.equal(tensors["model"]["top"], base[:2])


@settings(max_examples=40)
@given(where=st.floats(0, 1, exclude_max=True), name=st.sampled_from(["model.safetensors", "state.json"]))
def test_any_flipped_bit_is_detected(tmp_path_factory: pytest.TempPathFactory, where: float, name: str) -> None:
    folder = tmp_path_factory.mktemp("flip")
    checksummed_folder.write_folder(folder, TENSORS, {"step": 7})
    content = bytearray((folder / name).read_bytes())
    content[int(where * len(content))] ^= 4
    (folder / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=f"{name} is damaged: its checksum"):
        read_folder(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "rng.safetensors", "state.json"])
def test_a_truncated_or_missing_file_is_named(folder: Path, name: str) -> None:
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[:-3])
    with pytest.raises(CheckpointError, match=f"{name} is damaged: it has {len(content) - 3} bytes"):
        read_folder(folder)
    (folder / name).unlink()
    with pytest.raises(CheckpointError, match=f"{name} is listed in the manifest but missing"):
        read_folder(folder)


def test_a_folder_without_a_manifest_is_incomplete(folder: Path) -> None:
    (folder / MANIFEST_NAME).unlink()
    assert not checksummed_folder.is_complete(folder)
    with pytest.raises(CheckpointError, match="is incomplete"):
        read_folder(folder)


@pytest.mark.parametrize("content", ["[]", "{", '{"format": 99, "files": {}}', '{"format": 2}', "\x00"])
def test_an_invalid_manifest_is_an_error(folder: Path, content: str) -> None:
    (folder / MANIFEST_NAME).write_text(content)
    with pytest.raises(CheckpointError, match=r"manifest\.json"):
        read_folder(folder)


def test_an_invalid_tensor_file_with_a_valid_checksum_is_an_error(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"PK\x03\x04 a pickle in a zip")
    rewrite_manifest(folder)
    with pytest.raises(CheckpointError, match=r"model\.safetensors cannot be read"):
        read_folder(folder)


def _fill(folder: Path) -> tuple[str, list[str], dict[str, Any]]:
    """Write two folders, of which the second does not fit: the error, all names, and the state of the first."""
    with pytest.raises(FileError) as failed:
        checksummed_folder.write_folder(folder / "00000002", {"model": {"a": torch.ones(100_000)}}, {})
    return str(failed.value), sorted(path.name for path in folder.iterdir()), read_folder(folder / "00000001")[1]


def _write_first(folder: Path) -> None:
    checksummed_folder.write_folder(folder / "00000001", {"model": {"a": torch.ones(10)}}, {})


def test_a_quota_keeps_earlier_files(tmp_path: Path) -> None:
    _write_first(tmp_path)
    with file_size_limit(50_000):
        error, names, state = _fill(tmp_path)
    assert "cannot write" in error
    assert (names, state) == (["00000001"], {})


def test_a_full_disk_keeps_earlier_files(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", disk], capture_output=True)
    if mount.returncode:  # not allowed to mount: a file size limit tests the same
        _write_first(disk)
        with file_size_limit(50_000):
            assert "cannot write" in _fill(disk)[0]
        return
    try:
        _write_first(disk)
        error, names, state = _fill(disk)
    finally:
        subprocess.run(["umount", disk], check=True)
    assert "the disk is full\nfix: free some space; earlier files are intact" in error
    assert (names, state) == (["00000001"], {})


def test_a_read_only_folder_is_an_error(tmp_path: Path) -> None:
    if os.geteuid() == 0:  # to root nothing is read-only but what is no folder at all
        tmp_path = Path("/proc/self/task")
    else:
        tmp_path.chmod(0o500)
    with pytest.raises(FileError, match=r"cannot (write|create the folder)"):
        checksummed_folder.write_folder(tmp_path / "x", TENSORS, {})


def test_files_have_the_default_mode(folder: Path) -> None:
    (folder / "usual").write_text("")
    assert len({path.stat().st_mode for path in folder.iterdir()}) == 1


@pytest.mark.parametrize("entry", [None, [], {"sha256": "0"}, {"bytes": 3}])
def test_a_manifest_with_an_invalid_entry_is_an_error(folder: Path, entry: object) -> None:
    rewrite(folder / MANIFEST_NAME, lambda manifest: manifest["files"].update({"model.safetensors": entry}))
    for read in (read_folder, checksummed_folder.checksums):
        with pytest.raises(CheckpointError, match=r"manifest\.json is not valid: .* at `files\[\.\.\.\]"):
            read(folder)


def test_only_writable_files_are_fsynced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows refuses to sync a file that is only read."""
    fcntl, sync, modes = pytest.importorskip("fcntl"), os.fsync, []

    def watched(handle: int) -> None:
        if stat.S_ISREG(os.fstat(handle).st_mode):
            modes.append(fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_ACCMODE)
        sync(handle)

    monkeypatch.setattr(os, "fsync", watched)
    checksummed_folder.write_folder(tmp_path / "x", TENSORS, {})
    assert len(modes) == 4
    assert os.O_RDONLY not in modes


class LosesTheOther(Ranks):
    """Rank 0 of two. The other writes its part, and is killed before rank 0 has told it that all is complete."""

    def __init__(self, folder: Path) -> None:
        super().__init__(0, 2)
        object.__setattr__(self, "folder", folder)

    def gather(self, text: str) -> list[str]:
        folder, name = SafeFolder.of(self.folder), "model-1-of-2.safetensors"  # type: ignore[attr-defined]
        folder.write(name, safetensors_bytes({"b": torch.ones(2)}))
        return [text, json.dumps(hash_files(folder, [name]))]

    def barrier(self) -> None:
        if is_complete(self.folder):  # type: ignore[attr-defined]
            raise RankError("lost the connection to another rank")

    def sum(self, *values: float) -> list[float]:
        return list(values)


def test_a_complete_folder_outlives_a_rank_that_is_killed_afterwards(tmp_path: Path) -> None:
    folder = tmp_path / "00000003"
    with pytest.raises(RankError, match="lost the connection"):
        checksummed_folder.write_folder(folder, {"model": {"a": torch.zeros(2)}}, {}, ranks=LosesTheOther(folder))
    assert sorted(ChecksummedFolder(folder).tensors("model")) == ["a", "b"]


class Sees(Ranks):
    """A rank of two that is told whether the other has failed."""

    other_failed = False

    def any(self, value: bool) -> bool:
        return value or self.other_failed


def test_ranks_share_the_verification(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed, sha256 = list[int](), checksummed_folder._sha256

    def watched(file: BufferedReader) -> str:
        hashed.append(os.fstat(file.fileno()).st_ino)
        return sha256(file)

    monkeypatch.setattr(checksummed_folder, "_sha256", watched)
    for rank in range(2):
        opened = ChecksummedFolder(folder)
        opened.verify(Sees(rank, 2))
        assert opened.load()[1] == {"step": 7}
    assert len(hashed) == len({*hashed}) == len(ChecksummedFolder(folder).files)
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(CheckpointError, match=r"model\.safetensors is damaged: its checksum"):
        ChecksummedFolder(folder).verify(Sees(0, 2))
    monkeypatch.setattr(Sees, "other_failed", True)
    with pytest.raises(RankError, match="00000007 is damaged: see the error of another rank"):
        ChecksummedFolder(folder).verify(Sees(1, 2))
