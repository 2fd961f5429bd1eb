"""Files are written completely or not at all, and errors suggest a fix."""

import io
import os
import stat
from pathlib import Path

import pytest

from normscope.errors import FileError, NormscopeError
from normscope.storage.files import AtomicFile, is_partial, write_atomically, write_error


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_writes_and_replaces(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_atomically(path, "one\n")
    write_atomically(str(path), "zwölf …\n")
    assert path.read_bytes() == "zwölf …\n".encode()
    assert names(tmp_path) == ["a.txt"]


def test_the_file_has_the_default_mode(tmp_path: Path) -> None:
    write_atomically(tmp_path / "ours", "")
    (tmp_path / "usual").write_text("")
    assert stat.S_IMODE((tmp_path / "ours").stat().st_mode) == stat.S_IMODE((tmp_path / "usual").stat().st_mode)


def test_a_symbolic_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    write_atomically(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "text"


def test_a_failure_keeps_the_old_file_and_leaves_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FileError) as caught:
        write_atomically(path, "new")
    full_disk = "the disk is full\nfix: free some space; earlier files are intact"
    assert str(caught.value) == f"cannot write {path}: {full_disk}"
    assert path.read_text() == "old"
    assert names(tmp_path) == ["a.txt"]


def test_an_interruption_keeps_the_old_file_and_leaves_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert names(tmp_path) == ["a.txt"]


def test_missing_folder(tmp_path: Path) -> None:
    path = tmp_path / "no" / "a.txt"
    with pytest.raises(FileError) as caught:
        write_atomically(path, "")
    assert str(caught.value) == f"cannot write {path}: the folder {path.parent} does not exist\nfix: create it first"


def test_folder_in_place_of_a_file(tmp_path: Path) -> None:
    with pytest.raises(FileError) as caught:
        write_atomically(tmp_path, "")
    assert str(caught.value) == f"cannot write {tmp_path}: it is a folder\nfix: give the path of a file inside it"


def test_read_only_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Root may write to a read-only folder, so the refusal is made here and not by the system.
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(FileError) as caught:
        write_atomically(tmp_path / "a.txt", "")
    message = f"cannot write {tmp_path / 'a.txt'}: {tmp_path} is read-only\nfix: choose another folder"
    assert str(caught.value) == message


def test_a_file_error_is_an_os_error() -> None:
    assert issubclass(FileError, NormscopeError)
    assert issubclass(FileError, OSError)


def test_a_file_written_piece_by_piece_appears_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")
    with AtomicFile(path) as file:
        file.write(b"\x00\xff")
        file.write(memoryview(b"\r\n"))
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"\x00\xff\r\n"
    assert names(tmp_path) == ["a.bin"]


def test_an_error_in_the_block_keeps_the_old_file_and_is_raised(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")

    def fail() -> None:
        with AtomicFile(path) as file:
            file.write(b"new")
            raise OSError("something else")

    with pytest.raises(OSError, match=r"^something else$"):
        fail()
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["a.bin"]


def test_a_full_disk_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class FullFile(io.BytesIO):
        def write(self, _: object) -> int:
            raise OSError(28, "No space left on device")

    def full(number: int, _: str) -> FullFile:
        os.close(number)
        return FullFile()

    monkeypatch.setattr(os, "fdopen", full)
    with (
        pytest.raises(FileError, match=r"cannot write .*a\.bin: the disk is full"),
        AtomicFile(tmp_path / "a.bin") as file,
    ):
        file.write(b"new")
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (PermissionError(13, "Permission denied"), "{folder} is read-only\nfix: choose another folder"),
        (OSError(30, "Read-only file system"), "{folder} is read-only\nfix: choose another folder"),
        (OSError(28, "No space left"), "the disk is full\nfix: free some space; earlier files are intact"),
        (ValueError("I/O error: No space left on device"), "the disk is full\nfix: free some space; earlier files"),
        (OSError(5, "Input/output error"), "Input/output error"),
        (ValueError("something else"), "something else"),
    ],
)
def test_equal_errors_have_equal_messages(tmp_path: Path, error: Exception, words: str) -> None:
    """Whoever meets it: this file, checkpoints, or the metrics."""
    path = tmp_path / "a"
    assert str(write_error(path, error)).startswith(f"cannot write {path}: {words.format(folder=tmp_path)}")


def test_partial_files_are_recognized_by_name(tmp_path: Path) -> None:
    with AtomicFile(tmp_path / "a.json"):
        [name] = [path.name for path in tmp_path.iterdir()]
        assert is_partial(name)
    assert not is_partial("a.json")
    assert not is_partial(".notes.part")
