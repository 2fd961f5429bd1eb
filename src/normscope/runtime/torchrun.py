"""What torchrun tells the processes that it starts, by environment variables. Imports no torch."""

import os
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from normscope.errors import NormscopeError, RankError

first_to_say: Callable[[str], bool] | None = None
"""Whether no other rank has shown this message; None before the ranks meet."""


def _no_wait() -> None:
    """What a process alone does instead of waiting for a rank."""


wait_for_report: Callable[[], None] = _no_wait
"""Waits until the rank that shows an error has ended."""


def is_launched(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process is one of several that train together.

    >>> is_launched({"RANK": "0", "WORLD_SIZE": "2"}), is_launched({"RANK": "0", "WORLD_SIZE": "1"}), is_launched({})
    (True, False, False)
    """
    return "RANK" in environment and int(environment.get("WORLD_SIZE") or 1) > 1


def rank_label() -> str:
    """How the messages of this process begin: with its rank; empty for a process alone."""
    return f"[rank {os.environ['RANK']}] " if is_launched() else ""


def shows(error: NormscopeError) -> bool:
    """Whether this process has to show an error. A mistake that all ranks find is shown once, a lost rank by each."""
    if first_to_say is None:
        return int(os.environ.get("LOCAL_RANK") or 0) == 0  # once per machine, which may differ from the others
    return not error.is_echo if isinstance(error, RankError) else first_to_say(str(error))


def stop_with_launcher() -> None:
    """Let this process stop, with everything saved, if torchrun is killed and can no longer tell it to."""
    if job_name() is not None and sys.platform.startswith("linux"):
        import ctypes

        set_death_signal = 1
        ctypes.CDLL(None).prctl(set_death_signal, int(signal.SIGTERM))


def exit_at_once(code: int) -> NoReturn:
    """End this process without waiting for other ranks, which may be gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def is_restart() -> bool:
    """Whether the job of this process may have started before.

    torchrun counts restarts after failures, but not those for machines that join. A job with a name (--rdzv-id) may
    also have been started again by the cluster's scheduler.
    """
    is_named = os.environ.get("TORCHELASTIC_RUN_ID", "none") != "none"
    return is_named or int(os.environ.get("TORCHELASTIC_RESTART_COUNT") or 0) > 0


def job_name() -> str | None:
    """A name for all processes of one torchrun job, the same after a restart; None without torchrun."""
    run_id = os.environ.get("TORCHELASTIC_RUN_ID")
    if run_id is None:
        return None
    # All jobs without --rdzv-id share the name "none", but not the process of torchrun.
    return run_id if run_id != "none" else f"{os.uname().nodename}-{os.getppid()}-{_start_time(os.getppid())}"


def _start_time(process: int) -> str:
    """When a process started, where the system tells: process numbers are used again."""
    with suppress(OSError, IndexError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    return "unknown"
