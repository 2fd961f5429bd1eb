"""Changed and missing source files are detected."""

import os
from pathlib import Path

import pytest

from normscope.data.prepare import prepare
from normscope.data.sources import SourceFingerprint, changed_sources
from tests.data.texts import POEM, write


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "texts", a=POEM, b=POEM, c=POEM)


def test_changed_and_missing_files(folder: Path, tmp_path: Path) -> None:
    sources = prepare(folder, tmp_path / "out").record.sources
    assert changed_sources(sources) == {}
    (folder / "a.txt").unlink()
    (folder / "b.txt").write_bytes(POEM.encode()[:-1])
    (folder / "c.txt").write_bytes(POEM.replace("cät", "dög").encode())
    names = [str(folder / f"{name}.txt") for name in "abc"]
    assert changed_sources(sources) == dict(zip(names, ["missing", "changed", "changed"], strict=True))


def test_a_new_modification_time_alone_is_no_change(folder: Path, tmp_path: Path) -> None:
    sources = prepare(folder, tmp_path / "out").record.sources
    os.utime(folder / "a.txt", ns=(1, 1))
    assert changed_sources(sources) == {}


def test_the_same_size_and_modification_time_count_as_unchanged(folder: Path) -> None:
    path = folder / "a.txt"
    status = path.stat()
    trusted = SourceFingerprint("a", str(path), status.st_size, status.st_mtime_ns, "another checksum")
    assert changed_sources([trusted]) == {}
    assert changed_sources([SourceFingerprint("a", str(path), status.st_size, 1, "another checksum")]) == {
        "a": "changed"
    }


def test_an_unrelated_file_of_the_same_name_does_not_count(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    sources = prepare("a.txt", tmp_path / "out").record.sources
    (folder / "a.txt").unlink()
    monkeypatch.chdir(write(tmp_path / "elsewhere", a="something else"))
    assert changed_sources(sources) == {"a.txt": "missing"}


@pytest.mark.parametrize("name", ["stat", "open"])
def test_an_unreadable_file_counts_as_missing(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Root may look at any file, so the refusal is made here and not by the system.
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    path = folder / "a.txt"
    was = SourceFingerprint("a", str(path), path.stat().st_size, 1, "a checksum")
    monkeypatch.setattr(Path, name, refuse)
    assert changed_sources([was]) == {"a": "missing"}


def test_relative_path_works_from_any_folder(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    sources = prepare("a.txt", tmp_path / "out").record.sources
    assert sources[0].name == "a.txt"
    monkeypatch.chdir(tmp_path)
    assert changed_sources(sources) == {}
    folder.rename(tmp_path / "moved")
    assert changed_sources(sources) == {"a.txt": "missing"}
    monkeypatch.chdir(tmp_path / "moved")
    assert changed_sources(sources) == {}
