"""Commands of a cluster, run on this machine: torchruns that meet at 127.0.0.1, and what became of their run."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SMALL = ["--depth", "1", "--width", "32", "--heads", "2", "--context", "32", "--tokenizer", "bytes", "--batch", "4"]
RARELY = ["--eval-every", "0", "--sample-every", "0", "--save-every", "20", "--device", "cpu", "--quiet"]
ROOT = Path(__file__).parents[2]
TRIES = 200.0  # seconds until a test gives up
Start = Callable[[list[str], Path, dict[str, str]], "subprocess.Popen[Any]"]
"""Starts a command in a folder, with these environment variables; see the fixture."""


def environment(**others: str) -> dict[str, str]:
    """Our code, this environment's torchrun, and this machine only."""
    folders = {"PYTHONPATH": [ROOT / "src"], "PATH": [Path(sys.executable).parent]}
    paths = {
        name: os.pathsep.join([*map(str, places), *filter(None, [os.environ.get(name)])])
        for name, places in folders.items()
    }
    torch = {"PET_LOCAL_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    return {**os.environ, **paths, **torch, **others}


def wait_until(done: Callable[[], Any], job: "subprocess.Popen[Any]") -> None:
    """Wait for something that happens while a job runs."""
    deadline = time.monotonic() + TRIES
    while not done():
        assert job.poll() is None, f"the job has ended with {job.returncode}"
        assert time.monotonic() < deadline
        time.sleep(0.02)


def events(run: Path, kind: str) -> list[dict[str, Any]]:
    """The events of a run so far."""
    path, found = run / "metrics.jsonl", []
    for line in path.read_text().splitlines() if path.exists() else ():
        with contextlib.suppress(ValueError):  # a line that is being written
            event = json.loads(line)
            if event["kind"] == kind:
                found.append(event)
    return found


def errors(folder: Path) -> set[str]:
    """The errors of ranks that the jobs of a folder have written."""
    return set(re.findall(r"error: (.*)", (folder / "log").read_text()))


def last_step(run: Path) -> int:
    return max((event["step"] for event in events(run, "step")), default=0)


def ranks(run: Path) -> list[tuple[str, str]]:
    """The changes of the number of ranks that a run notes."""
    texts = [str(event["text"]) for event in events(run, "notice")]
    return [numbers for text in texts for numbers in re.findall(r"ranks was (\d+) and is (\d+)", text)]


def descendants(process: int) -> Iterator[int]:
    """A process, its children, and theirs. torchrun gives each of its processes a session of its own."""
    yield process
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{process}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from descendants(int(child))


def kill(job: "subprocess.Popen[Any]") -> None:
    """End all processes of a job at once, as the loss of its machine does."""
    for process in list(descendants(job.pid)) if job.poll() is None else []:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    job.wait()
