"""In a fresh checkout no kernel is compiled: let one pytest worker compile each kernel, not all of them.

The other workers wait and load it from numba's cache on disk. Compiling everything takes half a minute.
"""

import atexit
import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
    """Make numba compile each kernel in only one worker of this test run."""
    folder, compile_here = Path(tempfile.gettempdir()) / f"normscope-tests-{run}", Dispatcher.compile
    atexit.register(shutil.rmtree, folder, ignore_errors=True)

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
