"""OpenMP and MKL: environment variables they read when torch is imported, and how OpenMP threads wait.

A waiting OpenMP thread spins before it sleeps, since waking up takes longer than most waits; with libgomp, for some
milliseconds. On a busy machine it spins while the thread it waits for isn't scheduled, and keeps the core from it. It
should sleep immediately instead.

libgomp reads the spin time once, when it is loaded. But it reduces it to almost nothing while a process has more
threads than cores, which can be arranged at any time: an idle thread holds an idle team of OpenMP threads.
"""

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Mapping, MutableMapping

REPRODUCIBLE = "AUTO,STRICT"
"""MKL mode in which matrix products are bitwise identical for any number of threads."""

_OMP_WAIT_VARIABLES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "KMP_BLOCKTIME")


def user_sets_omp_wait(environment: Mapping[str, str]) -> bool:
    """Whether the user has configured how OpenMP threads wait; otherwise `ShortSpin` does.

    >>> user_sets_omp_wait({}), user_sets_omp_wait({"OMP_WAIT_POLICY": "active"})
    (False, True)
    """
    return any(name in environment for name in _OMP_WAIT_VARIABLES)


def set_env_defaults(environment: MutableMapping[str, str] | None = None) -> None:
    """Make MKL's results independent of the number of threads.

    Keeps variables set by the user. Does nothing if torch is already imported.

    >>> environment = {}
    >>> set_env_defaults(environment)
    >>> environment
    {'MKL_CBWR': 'AUTO,STRICT'}
    """
    if environment is None:
        if "torch" in sys.modules:
            return
        environment = os.environ
    environment.setdefault("MKL_CBWR", REPRODUCIBLE)


def _functions() -> tuple[Callable[..., object], object] | None:
    """libgomp's function that starts a team, and a no-op for the team to run; None without libgomp."""
    try:
        loaded = ctypes.CDLL(None)
        # LLVM's OpenMP library has libgomp's names too, but different settings.
        if hasattr(loaded, "kmp_set_blocktime"):
            return None
        start = loaded.GOMP_parallel
        start.argtypes, start.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint), None
        return start, ctypes.cast(loaded.omp_get_thread_num, ctypes.c_void_p)
    except (AttributeError, OSError, TypeError):
        return None


THREAD_NAME = "normscope-short-spin"
"""Name of the thread that holds the idle team."""


class ShortSpin:
    """Makes OpenMP threads sleep soon while it is on. No effect without libgomp, or if the user set a wait policy."""

    _lock = threading.RLock()  # reentrant: one may be garbage-collected while another is being set
    _count = 0  # instances that are on, in the whole process
    _end: threading.Event | None = None

    def __init__(self) -> None:
        self._is_on = False

    def set(self, on: bool) -> None:
        """Turn it on or off."""
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
        """Whether any instance is on."""
        return cls._end is not None


def _hold() -> threading.Event | None:
    """Hold a team of more threads than cores until the returned event is set."""
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
