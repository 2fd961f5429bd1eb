"""A running studio for tests: a real server in a thread, on a copy of the small committed run."""

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from normscope.studio.server import StudioServer

RUN = Path(__file__).parents[1] / "runs" / "fixtures" / "run-0.1.0"


@contextmanager
def running_studio(folder: Path) -> Iterator[StudioServer]:
    """Serve a folder that contains the run "small"."""
    shutil.copytree(RUN, folder / "small")
    with serve(folder, folder / "lab") as server:
        yield server


@contextmanager
def serve(runs: Path, lab: Path = Path("docs/lab")) -> Iterator[StudioServer]:
    """Serve a folder of runs, and results of the lab."""
    server = StudioServer(runs, lab)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join(20)
        assert not thread.is_alive(), "the server did not stop"
