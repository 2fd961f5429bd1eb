"""Who runs the trials: processes on this machine, or Ray's on many. The figures are the same."""

import multiprocessing
import os
import signal
import threading
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any, Protocol

from normscope.checks import check_positive_int, short_repr
from normscope.errors import ConfigError
from normscope.lab.code_version import snapshot
from normscope.lab.trial import LabTrial, TrialResult, run_trial


class Workers(Protocol):
    """A number of hands."""

    count: int

    def start(self, trial: LabTrial) -> "Future[TrialResult]":
        """Begin with a trial. If the process that runs it is lost, the future raises `BrokenExecutor`."""

    def close(self) -> None: ...


class Processes:
    """Processes of this machine, each on one core.

    Args:
        count: how many; None is one for each core.
        texts: where texts are found.
    """

    def __init__(self, count: int | None = None, texts: Path | None = None) -> None:
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            # This is a process of ours. It reads the user's script to begin with, which starts the lab again because
            # it lacks the guard. It goes without a word, and `start` explains it once, in the process above.
            raise SystemExit(1)
        self.count = cores() if count is None else count
        check_positive_int(workers=self.count)
        self._texts = texts
        # A forked process would inherit torch's threads in whatever state they are, so each starts anew.
        self._context = multiprocessing.get_context("spawn")
        self._begun = self._context.Value("b", 0, lock=False)  # a process that is killed would keep a lock for good
        self._pool = self._new_pool()

    def start(self, trial: LabTrial) -> "Future[TrialResult]":
        """Begin with a trial; where a process was lost, with new ones."""
        try:
            return self._pool.submit(run_trial, trial, self._texts)
        except BrokenExecutor:
            if not self._begun.value:
                raise ConfigError(
                    "the lab's processes end before they begin: each reads the script first that started the lab, and "
                    'must not start one again\nfix: if __name__ == "__main__":, and what starts the lab below it; in '
                    "a file, not typed or piped into Python"
                ) from None
            self._pool.shutdown()
            self._pool = self._new_pool()
            return self._pool.submit(run_trial, trial, self._texts)

    def _new_pool(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(self.count, self._context, _begin, (self._begun,))

    def close(self) -> None:
        """Let nobody start anything, and wait for nobody: what is under way is lost, what is done was kept."""
        running = list((self._pool._processes or {}).values())
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in running:
            process.terminate()
        for process in running:
            process.join()


class RayWorkers:
    """Ray's workers: those of the cluster that RAY_ADDRESS names, or of this machine if it names none.

    On a cluster every machine has to see the lab's folder under the same path, for texts of your own.
    """

    def __init__(self, count: int | None = None, texts: Path | None = None) -> None:
        try:
            import ray as library
        except ImportError:
            raise ConfigError("Ray is not installed\nfix: pip install 'normscope[ray]', or leave --ray out") from None
        ray: Any = library  # its own types do not follow what it does
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        self._ours = not ray.is_initialized()
        if self._ours:
            address = os.environ.get("RAY_ADDRESS")
            local: dict[str, Any] = {"num_cpus": count or cores(), "_node_ip_address": "127.0.0.1"}
            try:
                ray.init(address=address, include_dashboard=None if address else False, **({} if address else local))
            except Exception as error:  # whatever Ray and its server raise, which is of many kinds
                where = f"at RAY_ADDRESS={short_repr(address)}" if address else "on this machine"
                raise ConfigError(
                    f"Ray does not start {where}: {_first_line(error)}\n"
                    "fix: `ray start --head` shows what is wrong; or leave --ray out"
                ) from error
        self._ray, self._texts = ray, texts
        self._running: set[Any] = set()
        self._perform = ray.remote(num_cpus=1)(run_trial)
        self.count = count or max(1, int(ray.cluster_resources().get("CPU", 1)))

    def start(self, trial: LabTrial) -> "Future[TrialResult]":
        running = self._perform.remote(trial, self._texts)
        future: Future[TrialResult] = Future()
        self._running.add(running)
        running.future().add_done_callback(lambda ended: self._end(running, ended, future))
        return future

    def _end(self, running: Any, ended: "Future[TrialResult]", future: "Future[TrialResult]") -> None:
        """Pass on what came of a trial, errors as other workers have them and not in Ray's wrapping."""
        self._running.discard(running)
        error = ended.exception()
        if error is None:
            future.set_result(ended.result())
            return
        cause = getattr(error, "cause", None)
        if isinstance(error, (self._ray.exceptions.WorkerCrashedError, self._ray.exceptions.OutOfMemoryError)):
            cause = BrokenExecutor(str(error))
        if isinstance(cause, Exception):
            cause.__cause__ = error  # which tells the place that it comes from
        future.set_exception(cause if isinstance(cause, Exception) else error)

    def close(self) -> None:
        """End what is under way; and Ray too, unless it was there before us and somebody may still need it."""
        for running in list(self._running):
            self._ray.cancel(running, force=True)
        if self._ours:
            self._ray.shutdown()


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _begin(begun: Any) -> None:
    """What a process does before its first trial."""
    begun.value = 1
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one that the user sees, which then ends the rest
    threading.Thread(target=_end_with_parent, daemon=True).start()
    snapshot()  # of the code as it is before any of it is loaded


def _end_with_parent() -> None:
    """However the lab ends, by a signal that nobody catches too, nobody works on for nothing."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
