"""One trial: run normscope in a forked process under faulty conditions, and classify the outcome."""

import os
import resource
import shutil
import signal
import sys
import time
import traceback
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

OUTCOMES = ("detected", "harmless", "accepted", "slow", "traceback", "silent", "stuck", "unsafe", "hang", "crash")
"""Possible outcomes of a trial.

detected: refused with an error message. harmless: the result is correct. accepted: a valid user file without a checksum
has different content. slow: takes long because of the given arguments. traceback: an unhandled exception. silent: a
different result without an error. stuck: a killed run cannot be resumed. unsafe: control characters in an error
message. hang: exceeded the time limit. crash: terminated by a signal.
"""
BAD = ("traceback", "silent", "stuck", "unsafe", "hang", "crash")
MEMORY = 4 * 2**30
"""Additional address space for a trial, in bytes."""
_BUG = 70


@dataclass(frozen=True)
class ProcessResult:
    """How a process ended.

    Args:
        code: exit code; negative for a signal, None for a timeout.
        out, errors: its stdout and stderr.
    """

    code: int | None
    out: str
    errors: str


@dataclass(frozen=True)
class Trial:
    """One trial.

    Args:
        kind: row of the table that it counts in.
        description: enough detail to reproduce it.
        act: runs in the trial's process and working directory; returns the exit code.
        judge: classifies a process that exited normally.
        seconds: limit of CPU time. Wall time may be ten times as long, so that a busy machine doesn't count as a hang.
        may_be_slow: whether the arguments ask for a long computation.
    """

    kind: str
    description: str
    act: Callable[[], int]
    judge: Callable[[ProcessResult, Path], str]
    seconds: float = 30.0
    may_be_slow: bool = False


def run_trial(trial: Trial, folder: Path) -> tuple[str, ProcessResult]:
    """Run a trial in this folder, which is created and removed."""
    folder.mkdir()
    try:
        result = run_forked(trial.act, folder, trial.seconds)
        return _outcome(trial, result, folder), result
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _outcome(trial: Trial, result: ProcessResult, folder: Path) -> str:
    if result.code is None:
        return "slow" if trial.may_be_slow else "hang"
    if result.code < 0:
        return "crash"
    if result.code == _BUG or "Traceback (most recent call last)" in result.errors:
        return "traceback"
    if any(unicodedata.category(character) in ("Cc", "Cf") and character not in "\n\t" for character in result.errors):
        return "unsafe"
    return trial.judge(result, folder)


def run_forked(act: Callable[[], int], folder: Path, seconds: float) -> ProcessResult:
    """Run a function in a forked process with a time limit, a memory limit, and its output in files."""
    out, errors = Path(f"{folder}.out"), Path(f"{folder}.errors")  # outside the folder, where nothing damages them
    sys.stdout.flush()
    process = os.fork()
    if process == 0:
        _run_child(act, folder, out, errors)
    code = _wait(process, seconds)
    result = ProcessResult(code, _text(out), _text(errors))
    out.unlink(missing_ok=True)
    errors.unlink(missing_ok=True)
    return result


def _run_child(act: Callable[[], int], folder: Path, out: Path, errors: Path) -> None:
    """Body of the forked process; never returns."""
    code = _BUG
    try:
        os.setsid()  # so that its children can be killed with it
        for number, path in ((1, out), (2, errors)):
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(file, number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        reopen_standard_streams()
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        os.chdir(folder)
        code = act()
        if sys.stdout is not None:  # a trial may have closed it
            sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def reopen_standard_streams() -> None:
    """Reopen sys.stdin, sys.stdout and sys.stderr on descriptors 0, 1 and 2."""
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115


def _wait(process: int, seconds: float) -> int | None:
    """Exit code of a process; on timeout its process group is killed."""
    end = time.monotonic() + 10 * seconds
    pause = 0.002
    while time.monotonic() < end and _cpu_time(process) < seconds:
        found, status = os.waitpid(process, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(pause)
        pause = min(0.05, 1.3 * pause)
    os.killpg(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return None


def _cpu_time(process: int) -> float:
    """CPU seconds of a process and its waited-for children."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(int(ticks) for ticks in fields[11:15]) / os.sysconf("SC_CLK_TCK")


def _text(path: Path) -> str:
    try:
        return path.read_bytes()[: 2**20].decode(errors="replace")
    except FileNotFoundError:
        return ""
