"""Token files: windows match the written tokens, and memory is released."""

import mmap
import os
from pathlib import Path

import numpy as np
import pytest

from normscope.data.token_file import TokenFile
from normscope.errors import FileError, ShapeError
from normscope.storage.files import write_atomically


def written(path: Path, dtype: str, count: int = 1000) -> np.ndarray:
    tokens = np.random.default_rng(0).integers(0, np.iinfo(dtype).max, count, dtype=dtype, endpoint=True)
    path.write_bytes(tokens.astype(np.dtype(dtype).newbyteorder("<")).tobytes())
    return tokens


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32"])
def test_windows_match_the_written_tokens(dtype: str, tmp_path: Path) -> None:
    tokens = written(tmp_path / "a.bin", dtype)
    file = TokenFile(tmp_path / "a.bin", dtype, text_bytes=2000)
    assert (len(file), file.tokens, file.bytes, file.dtype) == (1000, 1000, 2000, np.dtype(dtype))
    np.testing.assert_array_equal(file.window(3, 50), tokens[3:53])
    assert file.window(0, 1).dtype == dtype
    np.testing.assert_array_equal(file.window(0, 1000), tokens)
    starts = np.array([7, 0, 990, 7])
    rows = file.windows(starts, 10)
    np.testing.assert_array_equal(rows, [tokens[start : start + 10] for start in starts])
    assert rows.dtype == np.int64


def test_window_is_a_copy(tmp_path: Path) -> None:
    written(tmp_path / "a.bin", "uint16")
    file = TokenFile(tmp_path / "a.bin", "uint16", 0)
    window = file.window(0, 10)
    before = window.copy()
    window += 1
    np.testing.assert_array_equal(file.window(0, 10), before)


@pytest.mark.parametrize(("start", "length"), [(-1, 5), (996, 5), (1000, 1), (0, -1), (0.5, 3)])
def test_windows_out_of_range(start: int, length: int, tmp_path: Path) -> None:
    written(tmp_path / "a.bin", "uint16")
    file = TokenFile(tmp_path / "a.bin", "uint16", 0)
    with pytest.raises(ShapeError, match=r"is out of range: a\.bin has 1000"):
        file.window(start, length)


@pytest.mark.parametrize("start", [-1, 991])
def test_rows_out_of_range(start: int, tmp_path: Path) -> None:
    written(tmp_path / "a.bin", "uint16")
    with pytest.raises(ShapeError, match=r"is out of range: a\.bin has 1000"):
        TokenFile(tmp_path / "a.bin", "uint16", 0).windows(np.array([5, start]), 10)


def test_invalid_files(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    with pytest.raises(FileError, match=r"a\.bin does not exist\nfix: prepare the corpus again"):
        TokenFile(path, "uint16", 0)
    path.write_bytes(b"123")
    with pytest.raises(FileError, match=r"a\.bin has 3 bytes, not a multiple of the size of uint16\nfix: "):
        TokenFile(path, "uint16", 0)


def test_a_file_truncated_while_in_use(tmp_path: Path) -> None:
    written(tmp_path / "a.bin", "uint16")
    file = TokenFile(tmp_path / "a.bin", "uint16", 0)
    os.truncate(tmp_path / "a.bin", 100)
    with pytest.raises(FileError, match=r"a\.bin was truncated while in use\nfix: "):
        file.window(45, 10)


def test_a_replaced_file_stays_open(tmp_path: Path) -> None:
    tokens = written(tmp_path / "a.bin", "uint16")
    file = TokenFile(tmp_path / "a.bin", "uint16", 0)
    write_atomically(tmp_path / "a.bin", "others")
    np.testing.assert_array_equal(file.window(0, 1000), tokens)


def test_systems_without_pread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = written(tmp_path / "a.bin", "uint16")
    file = TokenFile(tmp_path / "a.bin", "uint16", 0)
    monkeypatch.delattr(os, "pread")
    for start in (500, 3, 990):
        np.testing.assert_array_equal(file.window(start, 10), tokens[start : start + 10])


def test_files_are_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "a.bin", "uint16")
    closed: list[int] = []
    close = os.close

    def note(number: int) -> None:
        closed.append(number)
        close(number)

    monkeypatch.setattr(os, "close", note)
    file = TokenFile(tmp_path / "a.bin", "uint16", 0)
    number = file._file
    del file
    assert number in closed


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="only Linux tells what is resident")
def test_memory_does_not_grow_with_what_was_read(tmp_path: Path) -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

    path = tmp_path / "large.bin"
    with path.open("wb") as out:
        for _ in range(64):
            out.write(bytes(2**20))
    file = TokenFile(path, "uint16", 0)
    file.window(0, 64)
    before = resident()
    for start in range(0, len(file) - 64, 2**14):
        file.windows(np.array([start]), 64)
    assert resident() - before < 16 * 2**20


def test_a_pipe_or_device_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "train.bin")
    (tmp_path / "zero.bin").symlink_to("/dev/zero")
    for name, kind in (("train.bin", "a pipe"), ("zero.bin", "a device")):
        with pytest.raises(FileError, match=f"cannot read .*{name}: it is {kind}, not a regular file\nfix: "):
            TokenFile(tmp_path / name, "uint8", 1)
