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
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, Literal

from normscope.errors import ConfigError

MAX_RUNNING = 2
"""Jobs at the same time: more only slow each other down."""
MAX_OUTPUT = 64 * 2**10
"""Bytes of output shown of a job."""
MAX_JOBS = 50
"""Jobs that are remembered; older ones that have ended are forgotten."""
STOP_SECONDS = 30.0
WATCH_SECONDS = 0.3
HEARTBEAT_SECONDS = 1.0
"""Longest silence of a stream: a client that went away is noticed when something is sent."""

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
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def status(self) -> JobStatus:
        code = self.process.poll()
        if code is None:
            return "running"
        if code == 0:
            return "done"
        return "stopped" if self.stop_requested else "failed"

    def output(self) -> str:
        """The last part of its output. The file of a process that has ended is closed."""
        ended = self.process.poll() is not None  # before reading: it may print until it ends
        with self._lock:
            if self.output_file.closed:
                return self.final_output
            # Without seek: the process writes at the same position of the file.
            number = self.output_file.fileno()
            start = max(0, os.fstat(number).st_size - MAX_OUTPUT)
            text = os.pread(number, MAX_OUTPUT, start).decode(errors="replace")
            if ended:
                self.final_output = text
                self.output_file.close()
            return text

    def stop(self) -> None:
        """Ask it to save and stop, as Ctrl-C does; once, because a second time would end it while it saves."""
        with self._lock:
            if self.stop_requested:
                return
            self.stop_requested = True
        if self.process.poll() is None:
            # Not SIGINT: a server that a script started with & ignores it, and its children do too.
            self.process.send_signal(signal.SIGTERM)

    def close(self) -> None:
        """Wait for a process that was stopped, and close its output; one that does not end in time is killed."""
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)  # with its workers: it leads a session of its own
            self.process.wait()
        self.output()


def watch(job: Job) -> Iterator[dict[str, object]]:
    """What a job prints and its status, whenever they change and as a heartbeat, until it has ended."""
    last, sent = None, 0.0
    while True:
        now: dict[str, object] = {"status": job.status, "output": job.output()}
        if now != last or time.monotonic() - sent > HEARTBEAT_SECONDS:
            yield now
            last, sent = now, time.monotonic()
        if now["status"] != "running":
            return
        time.sleep(WATCH_SECONDS)


class Jobs:
    """The jobs of a server."""

    def __init__(self) -> None:
        self._jobs: dict[int, Job] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[Job]:
        return iter(list(self._jobs.values()))

    def start(self, kind: str, subject: str, arguments: Sequence[str]) -> Job:
        """Run `normscope ARGUMENTS` in the background.

        Args:
            kind, subject: See `Job`.
            arguments: Command and options.
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
                [sys.executable, "-P", "-m", "normscope", *arguments],  # -P: no modules of the working directory
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            job = Job(next(self._numbers), kind, subject, process, output)
            self._jobs[job.number] = job
            self._forget()
            return job

    def _forget(self) -> None:
        """Close the outputs of jobs that have ended, and forget the oldest."""
        ended = [job for job in self if job.status != "running"]
        for job in ended:
            job.output()
        for job in ended[: max(0, len(self._jobs) - MAX_JOBS)]:
            del self._jobs[job.number]

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
