"""Commands that the page starts: training and lab runs, each in a process of its own."""

import itertools
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal

from normscope.errors import ConfigError

MAX_RUNNING = 2
"""Jobs at the same time: more only slow each other down."""
MAX_OUTPUT = 64 * 2**10
"""Bytes of output shown of a job."""
STOP_SECONDS = 30.0
WATCH_SECONDS = 0.3

JobStatus = Literal["running", "done", "stopped", "failed"]


@dataclass
class Job:
    """A command in a process of its own.

    Args:
        number: Its number on this server.
        kind: What it does: "train" (or resume) a run, or "lab".
        subject: What it works on: the name of a run or of a claim.
    """

    number: int
    kind: str
    subject: str
    process: subprocess.Popen[bytes] = field(repr=False)
    output_file: IO[bytes] = field(repr=False)
    stop_requested: bool = False
    final_output: str = field(default="", repr=False)

    @property
    def status(self) -> JobStatus:
        code = self.process.poll()
        if code is None:
            return "running"
        if code == 0:
            return "done"
        return "stopped" if self.stop_requested else "failed"

    def output(self) -> str:
        """The end of what it printed."""
        if self.output_file.closed:
            return self.final_output
        # Without seek: the process writes at the same position of the file.
        number = self.output_file.fileno()
        start = max(0, os.fstat(number).st_size - MAX_OUTPUT)
        return os.pread(number, MAX_OUTPUT, start).decode(errors="replace")

    def stop(self) -> None:
        """Ask it to save and stop, as Ctrl-C does."""
        self.stop_requested = True
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)

    def close(self) -> None:
        """Wait for a process that was stopped, and close its output; one that does not end in time is killed."""
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.final_output = self.output()
        self.output_file.close()


def watch(job: Job) -> Iterator[dict[str, object]]:
    """What a job prints and its status, whenever they change, until it has ended."""
    last = None
    while True:
        now: dict[str, object] = {"status": job.status, "output": job.output()}
        if now != last:
            yield now
        if now["status"] != "running":
            return
        last = now
        time.sleep(WATCH_SECONDS)


class Jobs:
    """The jobs of a server."""

    def __init__(self) -> None:
        self._jobs: dict[int, Job] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def __iter__(self) -> "itertools.chain[Job]":
        return itertools.chain(list(self._jobs.values()))

    def start(self, kind: str, subject: str, arguments: Sequence[str], folder: Path | None = None) -> Job:
        """Run `normscope ARGUMENTS` in the background.

        Args:
            kind, subject: See `Job`.
            arguments: Command and options.
            folder: Working directory; None for this process's.
        """
        with self._lock:
            running = [job for job in self if job.status == "running"]
            if any((job.kind, job.subject) == (kind, subject) for job in running):
                raise ConfigError(f"{subject} is already running")
            if len(running) >= MAX_RUNNING:
                raise ConfigError(
                    f"{MAX_RUNNING} jobs are running: {', '.join(job.subject for job in running)}\nfix: stop one first"
                )
            output = tempfile.TemporaryFile()  # noqa: SIM115, open as long as the job
            # A session of its own: Ctrl-C in the terminal reaches the server only, which then stops its jobs in order.
            process = subprocess.Popen(
                [sys.executable, "-m", "normscope", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
                start_new_session=True,
            )
            job = Job(next(self._numbers), kind, subject, process, output)
            self._jobs[job.number] = job
            return job

    def get(self, number: int) -> Job:
        if number not in self._jobs:
            raise ConfigError(f"there is no job {number}")
        return self._jobs[number]

    def find(self, kind: str | None, subject: str) -> Job | None:
        """The latest job of this subject."""
        found = [job for job in self if job.subject == subject and kind in (None, job.kind)]
        return found[-1] if found else None

    def stop_all(self) -> None:
        """Stop all jobs; those that don't save and end in time are killed."""
        for job in self:
            if job.status == "running":
                job.stop()
        for job in self:
            job.close()
