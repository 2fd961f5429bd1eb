"""Threads for kernels: as many as torch uses, or one for small inputs and after a fork."""

import ctypes
import os
from functools import lru_cache

import torch

_MIN_PARALLEL_SIZE = 1 << 15
"""Below this number of elements, one thread is faster."""


ThreadPool = tuple[int, int, int, int]
"""The number of threads, and the addresses of GOMP_parallel, omp_get_thread_num and omp_get_num_threads.

A plain tuple, because numba takes five times as long to accept a named one.
"""


def _openmp() -> tuple[int, int, int] | None:
    """Return the functions of the OpenMP library that torch has loaded; None if it lacks the GNU interface."""
    try:
        loaded = ctypes.CDLL(None)
        functions = (loaded.GOMP_parallel, loaded.omp_get_thread_num, loaded.omp_get_num_threads)
    except (AttributeError, OSError, TypeError):
        return None
    fork, number, team = (ctypes.cast(function, ctypes.c_void_p).value or 0 for function in functions)
    return (fork, number, team) if fork and number and team else None


_openmp_functions = _openmp()
_single_thread: ThreadPool = (1, 0, 0, 0)


def _disable_threads_after_fork() -> None:
    global _openmp_functions
    _openmp_functions = None


# A forked child, such as a DataLoader worker, inherits a thread pool without running threads.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disable_threads_after_fork)


def thread_pool_for(numbers: int, max_threads: int | None = None) -> ThreadPool:
    """Return the threads for a kernel over this many elements: those of torch, at most `max_threads`."""
    if numbers < _MIN_PARALLEL_SIZE or _openmp_functions is None:
        return _single_thread
    threads = torch.get_num_threads()
    return _pool(threads if max_threads is None else min(threads, max_threads), _openmp_functions)


@lru_cache(maxsize=64)
def _pool(threads: int, functions: tuple[int, int, int]) -> ThreadPool:
    return _single_thread if threads == 1 else (threads, *functions)
