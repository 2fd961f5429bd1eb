"""Keep freed memory: a training loop asks for the same sizes again in the next step."""

import ctypes
import sys

_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1  # the names of these settings in glibc's malloc.h
_LARGEST = 1 << 30


def keep_freed_memory() -> bool:
    """Let glibc's allocator keep blocks up to a gigabyte instead of giving them back; True if there is one to ask.

    By default a block of more than some megabytes is a fresh mapping each time, and the kernel clears each of its
    pages at the first touch: on a norm of 2048 x 512 numbers that took nine times as long as the norm.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST)) and bool(mallopt(_TRIM_THRESHOLD, _LARGEST))
