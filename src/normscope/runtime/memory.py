"""How much memory the process takes, as the system counts it, and how much there is."""

import os
import sys
from pathlib import Path

_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Where a container finds how much it may have, in the two versions of that."""


def current_memory() -> int:
    """The bytes in use now, or the most so far where the system does not tell.

    >>> 0 < current_memory() and 0 < peak_memory()
    True
    """
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return peak_memory()
    return pages * os.sysconf("SC_PAGE_SIZE")


def peak_memory() -> int:
    """The most bytes so far; 0 on Windows, which does not tell."""
    try:
        import resource
    except ImportError:
        return 0
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def meminfo() -> dict[str, int]:
    """What Linux says of its memory, in bytes, by its own names; nothing elsewhere."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}
    except (OSError, ValueError, IndexError):
        return {}


def available_memory() -> int | None:
    """The bytes that the process may still get, swap included; None where the system does not tell.

    Bounded by a container's limit and by `ulimit -v`.
    """
    sizes = meminfo()
    if "MemAvailable" not in sizes:
        return None
    free = sizes["MemAvailable"] + sizes.get("SwapFree", 0)
    for path in _LIMITS:
        try:
            free = min(free, int(Path(path).read_text(encoding="ascii")))
        except (OSError, ValueError):  # no such limit, or "max"
            continue
    return max(0, min(free, _address_space_left()))


def _address_space_left() -> int:
    """What `ulimit -v` leaves to this process; no limit is more than any machine has."""
    try:
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        taken = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except (ImportError, OSError, ValueError, IndexError):
        return sys.maxsize
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit - taken
