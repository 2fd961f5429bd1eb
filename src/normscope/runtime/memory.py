"""Memory: used by this process, available on the machine, and kept by the allocator."""

import ctypes
import os
import sys
from pathlib import Path

_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Memory limits of a container, for cgroups v2 and v1."""
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1  # option numbers in glibc's malloc.h
_LARGEST_KEPT = 1 << 30


def current_memory() -> int:
    """Resident memory in bytes; the peak where the current value is unknown.

    >>> 0 < current_memory() and 0 < peak_memory()
    True
    """
    resident = _statm_bytes(1)
    return peak_memory() if resident is None else resident


def peak_memory() -> int:
    """Peak resident memory in bytes; 0 on Windows, where it is unknown."""
    try:
        import resource
    except ImportError:
        return 0
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def meminfo() -> dict[str, int]:
    """/proc/meminfo in bytes; empty on other systems than Linux."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}
    except (OSError, ValueError, IndexError):
        return {}


def available_memory() -> int | None:
    """Bytes this process can still allocate, including swap; None if unknown.

    Respects the limit of a container and `ulimit -v`.
    """
    sizes = meminfo()
    if "MemAvailable" not in sizes:
        return None
    free = sizes["MemAvailable"] + sizes.get("SwapFree", 0)
    for path in _LIMITS:
        try:
            free = min(free, int(Path(path).read_text(encoding="ascii")))
        except (OSError, ValueError):  # no limit
            continue
    return max(0, min(free, _address_space_left()))


def _address_space_left() -> int:
    """Address space left under `ulimit -v`; sys.maxsize if unlimited."""
    taken = _statm_bytes(0)
    if taken is None:
        return sys.maxsize
    import resource  # there is one wherever there is /proc

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit - taken


def _statm_bytes(column: int) -> int | None:
    """Size of this process in bytes: 0 is its address space, 1 is resident; None without /proc."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[column]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def keep_freed_memory() -> bool:
    """Let glibc's allocator keep freed blocks of up to 1 GiB; returns whether it is available.

    A training step allocates the same sizes again. By default every large block is a new mapping whose pages the kernel
    clears on first use: on a norm of 2048 x 512 values that took nine times as long as the norm itself.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT)) and bool(mallopt(_TRIM_THRESHOLD, _LARGEST_KEPT))
