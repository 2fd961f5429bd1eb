"""Temporary folders are removed at the end, or by the next preparation after a kill."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from normscope.data.prepare import prepare
from normscope.data.write_corpus import temporary_folder
from normscope.errors import FileError
from tests.data.texts import POEM, contents, write

_WAITS = """
import sys, time
from normscope.data.prepare import prepare

def wait(done, total):
    if done > 0.9 * total:
        print("writing", flush=True)
        time.sleep(60)

prepare("-", sys.argv[1], progress=wait)
"""


def temporary_folders(folder: Path) -> list[Path]:
    return sorted(folder.glob(".*"))


def test_it_is_removed_after_the_block_and_after_an_error(tmp_path: Path) -> None:
    def fail() -> None:
        with temporary_folder(tmp_path / "new") as folder:
            (folder / "half").write_text("half")
            assert folder.parent == tmp_path / "new"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert list((tmp_path / "new").iterdir()) == []


def test_several_in_the_same_folder(tmp_path: Path) -> None:
    with temporary_folder(tmp_path) as one, temporary_folder(tmp_path) as other:
        assert one != other
        assert temporary_folders(tmp_path) == sorted([one, other])
    assert temporary_folders(tmp_path) == []


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no locks on folders, so nothing is removed there")
def test_only_abandoned_folders_are_removed(tmp_path: Path) -> None:
    out, poem = tmp_path / "out", write(tmp_path / "texts", poem=POEM)
    command = [sys.executable, "-c", _WAITS, str(out)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(POEM)
            process.stdin.close()
            assert process.stdout.readline() == "writing\n"
            left = temporary_folders(out)
            assert len(left) == 2, "what was piped in, and the tokens"
            with temporary_folder(out):
                assert set(left) < set(temporary_folders(out)), "its process still needs it"
        finally:
            process.kill()
            process.wait()
    assert temporary_folders(out) == left
    prepare(poem, out)
    assert list(contents(out)) == ["corpus.json", "tokenizer.json", "train.bin", "validation.bin"]


def test_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a folder is in use is unknown, so it stays."""
    (tmp_path / ".preparing-old").mkdir()
    monkeypatch.setattr("normscope.storage.lock._HAS_FLOCK", False)
    with temporary_folder(tmp_path) as folder:
        assert folder.is_dir()
    assert temporary_folders(tmp_path) == [tmp_path / ".preparing-old"]


def test_a_read_only_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Root may write anywhere, so the refusal is made here and not by the system.
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(FileError, match=r"cannot write .*: .* is read-only\nfix: "), temporary_folder(tmp_path):
        pass
