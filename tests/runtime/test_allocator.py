"""The allocator keeps what is freed, where there is one that can be asked."""

import ctypes
import subprocess
import sys

import pytest

from normscope.runtime.allocator import keep_freed_memory

_FAULTS = """
import ctypes, resource, sys
from normscope.runtime.allocator import keep_freed_memory
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
def test_freed_memory_is_used_again() -> None:
    held, faults = _faults("held")
    if not held:
        pytest.skip("this Linux has another allocator than glibc's")
    assert faults < 100
    assert _faults("as it is")[1] > 1000


def test_elsewhere_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert keep_freed_memory() is False


def test_a_library_without_it_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    assert keep_freed_memory() is False
