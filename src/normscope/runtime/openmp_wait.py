"""How long threads of OpenMP spin while they wait: briefly, while the cores are wanted by others.

A thread that waits for the next piece of work spins before it sleeps, since waking up takes longer than most waits.
With libgomp that is some milliseconds. On a busy machine it spins while the thread it waits for isn't scheduled, and
keeps the core from it; and a process that spins through its time slices is scheduled later than one that sleeps. So it
should sleep at once.

libgomp reads the time to spin once, when it is loaded. But it shortens it to almost nothing while a process has more
threads than cores, and this can be arranged at any moment: a thread that does nothing holds a team that does nothing.
"""

import ctypes
import os
import threading
from collections.abc import Callable

from normscope.runtime.env_vars import user_sets_omp_wait


def _functions() -> tuple[Callable[..., object], object] | None:
    """libgomp's function that starts a team, and one that does nothing for a team to run; None without libgomp."""
    try:
        loaded = ctypes.CDLL(None)
        # LLVM's library answers to libgomp's names too, but has settings of its own.
        if hasattr(loaded, "kmp_set_blocktime"):
            return None
        start = loaded.GOMP_parallel
        start.argtypes, start.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint), None
        return start, ctypes.cast(loaded.omp_get_thread_num, ctypes.c_void_p)
    except (AttributeError, OSError, TypeError):
        return None


THREAD_NAME = "normscope-brief-waits"
"""The name of the thread that holds the idle team."""


class ShortSpin:
    """Lets OpenMP's threads sleep soon while it is on. Does nothing where the user has decided, or without libgomp."""

    _lock = threading.RLock()  # of one that is collected while another is being set
    _count = 0  # how many of these are on, in the whole process
    _end: threading.Event | None = None

    def __init__(self) -> None:
        self._is_on = False

    def set(self, on: bool) -> None:
        """Turn it on or off; a second time changes nothing."""
        if on == self._is_on:
            return
        with ShortSpin._lock:
            self._is_on = on
            ShortSpin._count += 1 if on else -1
            if ShortSpin._count == 1 and on:
                ShortSpin._end = _hold()
            elif ShortSpin._count == 0 and ShortSpin._end is not None:
                ShortSpin._end.set()
                ShortSpin._end = None

    def __del__(self) -> None:
        self.set(False)

    @classmethod
    def is_active(cls) -> bool:
        """Whether threads sleep soon at the moment, because some of these are on."""
        return cls._end is not None


def _hold() -> threading.Event | None:
    """Keep a team of more threads than there are cores until the event that is returned."""
    functions = _functions()
    if functions is None or user_sets_omp_wait(os.environ):
        return None
    start, nothing = functions
    end, ready = threading.Event(), threading.Event()

    def keep() -> None:
        start(nothing, None, (os.cpu_count() or 1) + 1, 0)
        ready.set()
        end.wait()

    threading.Thread(target=keep, name=THREAD_NAME, daemon=True).start()
    ready.wait()
    return end
