"""In a fresh checkout nothing is compiled: let one pytest worker compile each kernel and test file, not all of them.

The others wait and load it from the cache on disk: numba's, or pytest's, which rewrites the assertions of test
files. On a slow machine the kernels take a minute, and the test files half a minute.
"""

import atexit
import contextlib
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import source_hash
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
from _pytest.assertion import rewrite
from numba.core.caching import NullCache
from numba.core.dispatcher import Dispatcher

TIMEOUT = 60.0
"""Seconds to wait for another worker before compiling here anyway."""


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    import fcntl

    path.parent.mkdir(exist_ok=True)
    with path.open("w") as file:
        deadline = time.monotonic() + TIMEOUT
        while time.monotonic() < deadline:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            time.sleep(0.02)
        yield


def share_among_workers(run: str) -> None:
    """Make this test run compile each kernel and each test file in only one worker."""
    folder = Path(tempfile.gettempdir()) / f"normscope-tests-{run}"
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    _compile_kernels_once(folder)
    if not sys.dont_write_bytecode:
        _rewrite_files_once(folder)


def _compile_kernels_once(folder: Path) -> None:
    compile_here = Dispatcher.compile

    def compile_once(self: Any, signature: Any) -> Any:
        function = self.py_func
        # What is not cached cannot be shared. Such functions are made by others and may have the same name as the one
        # that calls them, so that a lock would wait for itself.
        is_cached = not isinstance(self._cache, NullCache)
        if not (function.__module__.startswith("normscope.") and is_cached) or self.overloads.get(signature):
            return compile_here(self, signature)
        with _lock(folder / f"{function.__module__}.{function.__qualname__}"):
            return compile_here(self, signature)

    Dispatcher.compile = compile_once  # type: ignore[method-assign, assignment]


def _rewrite_files_once(folder: Path) -> None:
    rewrite_here = rewrite._rewrite_test

    def rewrite_once(fn: Path, config: pytest.Config) -> tuple[bytes, CodeType]:
        cached = rewrite.get_cache_dir(fn) / f"{fn.stem}{rewrite.PYC_TAIL}"
        with _lock(folder / str(fn).replace("/", ".")):
            code = rewrite._read_pyc(fn, cached)  # by now another worker may have written it
            if code is not None:
                return source_hash(fn.read_bytes()), code
            hashed, code = rewrite_here(fn, config)
            rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, hashed, cached)
            return hashed, code

    rewrite._rewrite_test = rewrite_once
