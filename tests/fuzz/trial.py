"""One trial: something is done to normscope in a process of its own, and what came of it gets a name."""

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

OUTCOMES = ("detected", "harmless", "accepted", "as asked", "traceback", "silent", "stuck", "unsafe", "hang", "crash")
"""What can come of a trial.

detected: refused, with a message. harmless: the result is the right one. accepted: a valid file of the user's own, for
which there is no checksum, says something else. as asked: it takes as long as the numbers say. traceback: an error that
is not normscope's. silent: another result, and no error. stuck: a run that was killed cannot be resumed. unsafe: an
error with control characters. hang: no end within the time limit. crash: ended by a signal.
"""
BAD = ("traceback", "silent", "stuck", "unsafe", "hang", "crash")
MEMORY = 4 * 2**30
"""How much more address space a trial gets."""
_BUG = 70


@dataclass(frozen=True)
class Ended:
    """How a process ended.

    Args:
        code: its exit code; negative for a signal, None if it took too long.
        out, errors: what it wrote.
    """

    code: int | None
    out: str
    errors: str


@dataclass(frozen=True)
class Trial:
    """Something to be tried.

    Args:
        kind: the row of the table that it counts in.
        words: what exactly it is, so that it can be done again.
        act: is called in the process of the trial, in a folder of its own; returns the exit code.
        judge: names the outcome of a process that ended by itself without a fault.
        seconds: the time limit in processor time. One that only waits may take ten times as long: a busy machine is no
            hang.
        may_last: whether the numbers in it ask for a long time.
    """

    kind: str
    words: str
    act: Callable[[], int]
    judge: Callable[[Ended, Path], str]
    seconds: float = 30.0
    may_last: bool = False


def attempt(trial: Trial, folder: Path) -> tuple[str, Ended]:
    """Run a trial in this folder, which is made, and removed afterwards."""
    folder.mkdir()
    try:
        ended = run_apart(trial.act, folder, trial.seconds)
        return _outcome(trial, ended, folder), ended
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _outcome(trial: Trial, ended: Ended, folder: Path) -> str:
    if ended.code is None:
        return "as asked" if trial.may_last else "hang"
    if ended.code < 0:
        return "crash"
    if ended.code == _BUG or "Traceback (most recent call last)" in ended.errors:
        return "traceback"
    if any(unicodedata.category(character) in ("Cc", "Cf") and character not in "\n\t" for character in ended.errors):
        return "unsafe"
    return trial.judge(ended, folder)


def run_apart(act: Callable[[], int], folder: Path, seconds: float) -> Ended:
    """Run a function in a copy of this process, with a time limit, a memory limit, and its output in files."""
    out, errors = Path(f"{folder}.out"), Path(f"{folder}.errors")  # beside it, where no damage reaches them
    sys.stdout.flush()
    process = os.fork()
    if process == 0:
        _be_the_trial(act, folder, out, errors)
    code = _wait(process, seconds)
    ended = Ended(code, _text(out), _text(errors))
    out.unlink(missing_ok=True)
    errors.unlink(missing_ok=True)
    return ended


def _be_the_trial(act: Callable[[], int], folder: Path, out: Path, errors: Path) -> None:
    """The life of the copy; it does not return."""
    code = _BUG
    try:
        os.setsid()  # so that what it starts can be ended with it
        for number, path in ((1, out), (2, errors)):
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(file, number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        use_descriptors()
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        room = pages * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (room, room))
        os.chdir(folder)
        code = act()
        if sys.stdout is not None:  # a trial may have closed it
            sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def use_descriptors() -> None:
    """Make Python's streams anew, over what the descriptors 0, 1 and 2 are now."""
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115


def _wait(process: int, seconds: float) -> int | None:
    """The exit code of a process; one that takes too long is killed, with all that it started."""
    end = time.monotonic() + 10 * seconds
    pause = 0.002
    while time.monotonic() < end and _processor_time(process) < seconds:
        found, status = os.waitpid(process, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(pause)
        pause = min(0.05, 1.3 * pause)
    os.killpg(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return None


def _processor_time(process: int) -> float:
    """The seconds that a process and those it waited for have computed."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(int(ticks) for ticks in fields[11:15]) / os.sysconf("SC_CLK_TCK")


def _text(path: Path) -> str:
    try:
        return path.read_bytes()[: 2**20].decode(errors="replace")
    except FileNotFoundError:
        return ""
