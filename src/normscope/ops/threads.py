"""How many threads a kernel takes: as many as torch, and one where more would not pay or would not be safe."""

import ctypes
import os
from functools import lru_cache
from typing import NamedTuple

import torch

_MIN_PARALLEL_SIZE = 1 << 15
"""Below so many numbers, sharing the work takes longer than doing it."""


class ThreadPool(NamedTuple):
    """How many threads; and the addresses of OpenMP's functions that start them, number them, and count them."""

    threads: int
    fork: int
    number: int
    team: int


def _openmp() -> tuple[int, int, int] | None:
    """The functions of the OpenMP library that torch has loaded; None where it has none of GNU's interface."""
    try:
        loaded = ctypes.CDLL(None)
        functions = (loaded.GOMP_parallel, loaded.omp_get_thread_num, loaded.omp_get_num_threads)
    except (AttributeError, OSError, TypeError):
        return None
    fork, number, team = (ctypes.cast(function, ctypes.c_void_p).value or 0 for function in functions)
    return (fork, number, team) if fork and number and team else None


_openmp_functions = _openmp()
_single_thread = ThreadPool(1, 0, 0, 0)


def _disable_threads_after_fork() -> None:
    global _openmp_functions
    _openmp_functions = None


# A forked child (a DataLoader's worker, say) inherits a pool of threads that no longer run.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disable_threads_after_fork)


def thread_pool_for(numbers: int, max_threads: int | None = None) -> ThreadPool:
    """The threads for a kernel over so many numbers: as many as torch has, or at most so many."""
    if numbers < _MIN_PARALLEL_SIZE or _openmp_functions is None:
        return _single_thread
    threads = torch.get_num_threads()
    return _pool(threads if max_threads is None else min(threads, max_threads), _openmp_functions)


@lru_cache(maxsize=64)
def _pool(threads: int, functions: tuple[int, int, int]) -> ThreadPool:
    return _single_thread if threads == 1 else ThreadPool(threads, *functions)
