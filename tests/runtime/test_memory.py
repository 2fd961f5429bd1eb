"""Memory as the system counts it."""

import mmap
from pathlib import Path

import numpy as np
import pytest

from normscope.runtime import memory


def test_memory_that_is_taken_is_counted() -> None:
    before = memory.current_memory()
    room = mmap.mmap(-1, 64 * 2**20)  # of the system, and not of what this process has freed before and kept
    taken = np.frombuffer(room, dtype=np.float64)
    taken[:] = 1
    assert memory.current_memory() - before > 48 * 2**20
    assert memory.peak_memory() >= before + 48 * 2**20
    assert taken[-1] == 1


def test_without_proc_the_peak_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> str:
        raise FileNotFoundError("/proc/self/statm")

    monkeypatch.setattr(Path, "read_text", missing)
    assert memory.current_memory() == memory.peak_memory() > 0


def test_memory_that_is_free_is_what_the_system_and_a_container_allow(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sizes = {"MemAvailable": 800, "SwapFree": 200}
    monkeypatch.setattr(memory, "meminfo", lambda: sizes)
    monkeypatch.setattr(memory, "_LIMITS", (tmp_path / "none", tmp_path / "limit"))
    assert memory.available_memory() == 1000
    for limit, free_cores in (("max\n", 1000), ("600\n", 600)):
        (tmp_path / "limit").write_text(limit)
        assert memory.available_memory() == free_cores
    sizes.clear()
    assert memory.available_memory() is None
