"""Memory as the system counts it."""

from pathlib import Path

import numpy as np
import pytest

from normscope.train.observers import memory


def test_memory_that_is_taken_is_counted() -> None:
    before = memory.memory_now()
    taken = np.ones(8 * 2**20)  # 64 MB, written to
    assert memory.memory_now() - before > 48 * 2**20
    assert memory.memory_peak() >= before + 48 * 2**20
    assert taken[-1] == 1


def test_without_proc_the_peak_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> str:
        raise FileNotFoundError("/proc/self/statm")

    monkeypatch.setattr(Path, "read_text", missing)
    assert memory.memory_now() == memory.memory_peak() > 0
