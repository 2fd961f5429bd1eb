"""In a fresh checkout nothing is compiled yet: let each kernel be compiled by one of the test workers, not by all.

Whoever comes second waits, and finds the code in numba's cache on disk. Compiling everything takes half a minute.
"""

import atexit
import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from numba.core.dispatcher import Dispatcher

PATIENCE = 60.0
"""Seconds to wait for another worker; then it is compiled here all the same."""


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    import fcntl

    path.parent.mkdir(exist_ok=True)
    with path.open("w") as file:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            time.sleep(0.02)
        yield


def share_among_workers(run: str) -> None:
    """From here on this process takes turns with the other workers of that run."""
    folder, compile_here = Path(tempfile.gettempdir()) / f"normscope-tests-{run}", Dispatcher.compile
    atexit.register(shutil.rmtree, folder, ignore_errors=True)

    def compile_once(self: Any, signature: Any) -> Any:
        function = self.py_func
        if not function.__module__.startswith("normscope.") or self.overloads.get(signature):
            return compile_here(self, signature)
        with _alone(folder / f"{function.__module__}.{function.__qualname__}"):
            return compile_here(self, signature)

    Dispatcher.compile = compile_once  # type: ignore[method-assign, assignment]
