"""`normscope train --nproc N` without the seconds of importing torch: ranks are forked from what starts them.

torch's elastic agent starts, watches and restarts them as it does those of torchrun.
"""

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from tests.training.forked import start_command_of


@dataclasses.dataclass
class Job:
    """A command that trains on several ranks."""

    process: BaseProcess
    output: Path
    errors: Path

    def ranks(self) -> list[int]:
        """The process numbers of the ranks that run."""
        assert self.process.pid is not None
        return processes_of(self.process.pid)

    def finish(self) -> tuple[int | None, str]:
        """The exit code, and what the processes wrote to stderr."""
        self.process.join(250)
        assert self.process.exitcode is not None, f"the command hangs: {self.errors.read_text()}"
        return self.process.exitcode, self.errors.read_text()


def processes_of(parent: int) -> list[int]:
    """The numbers of the processes that a process has started."""
    found = subprocess.run(["pgrep", "-P", str(parent)], capture_output=True, text=True, check=False)
    return sorted(map(int, found.stdout.split()))


def start_job(folder: Path, *words: str) -> Job:
    """Start `normscope` with these words, which have --nproc, and with its output in files of a folder."""
    output, errors = folder / "output", folder / "errors"
    for path in (output, errors):
        path.unlink(missing_ok=True)
    return Job(start_command_of(_launch, list(words), output, errors), output, errors)


def wait_for_step(job: Job, run: Path, step: int) -> None:
    """Wait until a run has done a step."""
    wait_until(job, lambda: f'"step": {step},' in _read(run / "metrics.jsonl"))


def wait_until(job: Job, is_true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 250
    while not is_true():
        assert job.process.is_alive(), job.errors.read_text()
        assert time.monotonic() < deadline
        time.sleep(0.005)


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _launch(words: list[str]) -> None:
    from torch.distributed.launcher import api

    start = api.elastic_launch

    def forking(config: Any, _: str) -> Callable[..., object]:
        launcher = start(dataclasses.replace(config, start_method="fork"), _rank)
        return lambda *arguments: launcher(*arguments[2:])  # without -m normscope

    api.elastic_launch = forking  # type: ignore[assignment, misc]
    _program(words)


def _rank(*words: str) -> None:
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)  # not what the agent does
    try:
        _program(list(words))
    except SystemExit as end:
        if end.code:  # otherwise the agent waits for the function to return
            os._exit(int(end.code))


def _program(words: list[str]) -> None:
    torch.set_num_threads(1)
    sys.argv = ["normscope", *words]
    from normscope.__main__ import program

    program()
