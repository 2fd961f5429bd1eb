"""Memory: what is used, what is available, and what the allocator keeps."""

import ctypes
import mmap
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from normscope.runtime import memory
from normscope.runtime.memory import keep_freed_memory


def test_allocated_memory_is_counted() -> None:
    before = memory.current_memory()
    room = mmap.mmap(-1, 64 * 2**20)  # of the system, and not of what this process has freed before and kept
    taken = np.frombuffer(room, dtype=np.float64)
    taken[:] = 1
    assert memory.current_memory() - before > 48 * 2**20
    assert memory.peak_memory() >= before + 48 * 2**20
    assert taken[-1] == 1


def test_without_proc_the_peak_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> str:
        raise FileNotFoundError("/proc/self/statm")

    monkeypatch.setattr(Path, "read_text", missing)
    assert memory.current_memory() == memory.peak_memory() > 0


def test_available_memory_respects_the_system_and_the_container(
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


_FAULTS = """
import ctypes, resource, sys
from normscope.runtime.memory import keep_freed_memory
held = keep_freed_memory() if sys.argv[1] == "held" else False
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
def use():
    block = libc.malloc(64 << 20)
    ctypes.memset(block, 1, 64 << 20)
    libc.free(block)
use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    use()
print(held, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def _faults(how: str) -> tuple[bool, int]:
    done = subprocess.run([sys.executable, "-c", _FAULTS, how], capture_output=True, text=True, check=True)
    held, faults = done.stdout.split()
    return held == "True", int(faults)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only glibc has the settings")
def test_freed_memory_is_reused() -> None:
    held, faults = _faults("held")
    if not held:
        pytest.skip("this Linux has another allocator than glibc's")
    assert faults < 100
    assert _faults("as it is")[1] > 1000


def test_keep_freed_memory_does_nothing_on_other_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert keep_freed_memory() is False


def test_keep_freed_memory_needs_mallopt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    assert keep_freed_memory() is False
