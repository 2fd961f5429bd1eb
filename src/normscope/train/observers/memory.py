"""How much memory the process takes, as the system counts it."""

import os
import sys
from pathlib import Path


def memory_now() -> int:
    """The bytes in use now, or the most so far where the system does not tell.

    >>> 0 < memory_now() and 0 < memory_peak()
    True
    """
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return memory_peak()
    return pages * os.sysconf("SC_PAGE_SIZE")


def memory_peak() -> int:
    """The most bytes so far; 0 on Windows, which does not tell."""
    try:
        import resource
    except ImportError:
        return 0
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
