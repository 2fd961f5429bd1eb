"""A full or read-only disk during training: a clear error, and saved files are intact."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from normscope.errors import FileError
from normscope.runs.run import Run
from normscope.training.loop import train_run
from tests.cli.running import entered
from tests.support import file_size_limit
from tests.training.small_run import last_sums, new_run
from tests.training.watching import story


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run without a fault, to compare with."""
    run = new_run(tmp_path_factory.mktemp("straight"), steps=9, save_every=3)
    train_run(run)
    return run


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path | None]:
    """A small disk of its own; None where the user may not mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if not _mount("-t", "tmpfs", "-o", "size=2m", "tmpfs", folder):
        yield None
        return
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def _mount(*arguments: str | Path) -> bool:
    if shutil.which("mount") is None:
        return False
    return subprocess.run(["mount", *arguments], capture_output=True).returncode == 0


def _fill(folder: Path, leave: int) -> Path:
    """Fill a disk up with one file, but for so many bytes."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(4096)):
            pass
    with ballast.open("r+b") as file:
        file.truncate(ballast.stat().st_size - leave)
    return ballast


@pytest.mark.parametrize("leave", [0, 40_000])  # not even the metrics can be written; a checkpoint only in part
def test_a_full_disk(disk: Path | None, straight: Run, leave: int) -> None:
    if disk is None:
        pytest.skip("needs the right to mount a small disk; test_a_quota says much the same")
    run = new_run(disk, steps=9, save_every=3)
    train_run(run, until=4)
    sums = last_sums(run)
    ballast = _fill(disk, leave)
    with pytest.raises(FileError, match=r"cannot write .*: the disk is full\nfix: free some space"):
        train_run(run)
    assert run.checkpoints.last() == 4
    run.checkpoints.load(4)
    assert last_sums(run) == sums
    ballast.unlink()
    assert train_run(run) == "done"
    assert (last_sums(run), story(run)) == (last_sums(straight), story(straight))


def test_a_quota(tmp_path: Path, straight: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run = new_run(tmp_path, steps=9, save_every=3)
    train_run(run, until=4)
    with file_size_limit(30_000):
        code, _, errors = entered(["resume", str(run.folder)], capsys)
    assert code == 2, errors
    assert errors.startswith("error: cannot write ")
    assert "Traceback" not in errors
    assert run.checkpoints.last() == 4
    assert train_run(run) == "done"
    assert (last_sums(run), story(run)) == (last_sums(straight), story(straight))


def test_a_read_only_folder(tmp_path: Path, disk: Path | None, straight: Run) -> None:
    run = new_run(disk or tmp_path, steps=9, save_every=3)
    train_run(run, until=4)
    if disk is not None:
        assert _mount("-o", "remount,ro", disk)
    elif os.geteuid() != 0:
        run.folder.chmod(0o500)
    else:
        pytest.skip("to root nothing is read-only, and a disk cannot be mounted here")
    try:
        with pytest.raises(FileError, match=r"cannot write to .*\nfix: choose another folder"):
            train_run(run)
        assert run.load_model("last")[1] == 4  # to read it is enough
    finally:
        if disk is not None:
            assert _mount("-o", "remount,rw", disk)
        run.folder.chmod(0o700)
    assert train_run(run) == "done"
    assert (last_sums(run), story(run)) == (last_sums(straight), story(straight))
