"""Workers that run trials: processes on this machine, or Ray on a cluster. The metrics are the same."""

import multiprocessing
import os
import re
import signal
import threading
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from normscope.checks import check_positive_int, short_repr
from normscope.errors import ConfigError
from normscope.lab.running.code_version import snapshot
from normscope.lab.running.trial import LabTrial, TrialResult, run_trial

MAX_WORKERS = 256
"""Maximum number of workers on a machine with fewer than 64 cores."""
MAX_PER_CORE = 4
"""Maximum number of workers per core on a larger one."""


class MachineLostError(BrokenExecutor):
    """A machine of a cluster is gone, with the trials that ran there."""


class Workers(Protocol):
    """Runs up to `count` trials at once."""

    @property
    def count(self) -> int: ...

    def start(self, trial: LabTrial) -> "Future[TrialResult]":
        """Start a trial. If its process dies, the future raises `BrokenExecutor`, or `MachineLostError`."""

    def close(self) -> None: ...


def start_workers(count: int | None, ray: bool, texts: Path) -> Workers:
    """Start workers on this machine or on Ray, by default one per core."""
    return RayWorkers(count, texts) if ray else ProcessWorkers(count, texts)


def default_workers(ray: bool) -> int:
    """One worker per core: of this machine, or of the cluster at RAY_ADDRESS."""
    if not ray:
        return cores()
    workers = RayWorkers()
    try:
        return workers.count
    finally:
        workers.close()


def check_workers(count: int | None) -> None:
    """Refuse a number of workers that the machine cannot hold: each is a process that loads torch."""
    if count is None:
        return
    check_positive_int(workers=count)
    most = max(MAX_WORKERS, MAX_PER_CORE * cores())
    if count > most:
        raise ConfigError(
            f"workers={short_repr(count)} must be at most {most:,}\nfix: omit it for one worker per core ({cores()})"
        )


class ProcessWorkers:
    """Processes on this machine, each on one core.

    Args:
        count: number of processes; None for one per core.
        texts: folder of stored texts.
    """

    def __init__(self, count: int | None = None, texts: Path | None = None) -> None:
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            # This is a spawned worker that imports the user's script, which starts the lab again because it lacks the
            # __main__ guard. It exits silently, and `start` raises one error in the parent process.
            raise SystemExit(1)
        check_workers(count)
        self.count = cores() if count is None else count
        self._texts = texts
        # Spawn: a forked process would inherit torch's threads in an undefined state.
        self._context = multiprocessing.get_context("spawn")
        self._started = self._context.Value("b", 0, lock=False)  # a killed process would hold a lock forever
        self._pool = self._new_pool()

    def start(self, trial: LabTrial) -> "Future[TrialResult]":
        """Start a trial, in a new pool if a process died."""
        try:
            return self._pool.submit(run_trial, trial, self._texts)
        except BrokenExecutor:
            if not self._started.value:
                raise ConfigError(
                    "the lab's worker processes exit at startup: each imports the script that started the lab, which "
                    'must not start it again\nfix: put the call below `if __name__ == "__main__":`, in a file'
                ) from None
            self._pool.shutdown()
            self._pool = self._new_pool()
            return self._pool.submit(run_trial, trial, self._texts)

    def _new_pool(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(self.count, self._context, _initialize, (self._started,))

    def close(self) -> None:
        """Terminate all processes: running trials are lost, finished ones are stored."""
        running = list((self._pool._processes or {}).values())
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in running:
            process.terminate()
        for process in running:
            process.join()


def _stay_on_this_machine() -> None:
    """Let Ray listen on the loopback interface, also if it was imported before and did not see the variable."""
    with suppress(ImportError):
        from ray._private import ray_constants

        ray_constants.ENABLE_RAY_CLUSTER = False


class RayWorkers:
    """Ray workers, on the cluster of RAY_ADDRESS or on this machine.

    On a cluster, every machine must see the lab's folder under the same path if a text file is used. Machines may join
    and leave during a run.
    """

    def __init__(self, count: int | None = None, texts: Path | None = None) -> None:
        address = os.environ.get("RAY_ADDRESS")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        if not address:  # on import, Ray reads whether it has to be reachable from other machines
            os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        try:
            import ray as library
        except ImportError:
            raise ConfigError("Ray is not installed\nfix: pip install 'normscope[ray]', or omit --ray") from None
        if not address:
            _stay_on_this_machine()
        check_workers(count)
        ray: Any = library  # its type stubs are incomplete
        self._owns_ray = not ray.is_initialized()
        if self._owns_ray:
            # Ray's own lines would break the progress bar, and those about lost machines are many.
            options: dict[str, Any] = {"address": address, "log_to_driver": False, "logging_level": "warning"}
            if not address:
                options |= {"num_cpus": count or cores(), "_node_ip_address": "127.0.0.1", "include_dashboard": False}
            try:
                ray.init(**options)
            except Exception as error:  # Ray raises many kinds of errors
                where = f"at RAY_ADDRESS={short_repr(address)}" if address else "on this machine"
                cause = next(iter(str(error).splitlines()), "") or type(error).__name__
                fix = "fix: `ray start --head` shows the cause; or omit --ray"
                raise ConfigError(f"Ray failed to start {where}: {cause}\n{fix}") from error
        self._ray, self._count, self._texts = ray, count, texts
        self._running: set[Any] = set()
        # The scheduler repeats lost trials, and shows it.
        self._run_trial = ray.remote(num_cpus=1, max_retries=0)(run_trial)

    @property
    def count(self) -> int:
        """As chosen, or one per core of the machines that are there now."""
        return self._count or max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def start(self, trial: LabTrial) -> "Future[TrialResult]":
        running = self._run_trial.remote(trial, self._texts)
        future: Future[TrialResult] = Future()
        self._running.add(running)
        running.future().add_done_callback(lambda ended: self._end(running, ended, future))
        return future

    def _end(self, running: Any, ended: "Future[TrialResult]", future: "Future[TrialResult]") -> None:
        """Forward a result or error, without Ray's wrapper."""
        self._running.discard(running)
        error = ended.exception()
        if error is None:
            future.set_result(ended.result())
            return
        errors = self._ray.exceptions
        if isinstance(error, errors.NodeDiedError):
            cause: Any = MachineLostError(_machine(str(error)))
        elif isinstance(error, (errors.WorkerCrashedError, errors.OutOfMemoryError)):
            cause = BrokenExecutor(str(error))
        else:
            cause = getattr(error, "cause", None)
        if isinstance(cause, Exception):
            cause.__cause__ = error  # keeps the remote traceback
            error = cause
        future.set_exception(error)

    def close(self) -> None:
        """Cancel running trials, and shut Ray down unless it was already running."""
        for running in list(self._running):
            self._ray.cancel(running, force=True)
        if self._owns_ray:
            self._ray.shutdown()


def _machine(message: str) -> str:
    """The machine that an error of Ray is about.

    >>> _machine("The node is dead. Node IP: 10.0.0.2, node ID: 1f2e3d4c5b6a79. This can happen if ...")
    '10.0.0.2 (node 1f2e3d4c5b6a)'
    """
    found = re.search(r"Node IP: (\S+), node ID: (\w{1,12})", message)
    return f"{found[1]} (node {found[2]})" if found else "unknown"


def cores() -> int:
    """Number of cores available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _initialize(started: Any) -> None:
    """Set up a worker process."""
    started.value = 1
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the parent, which terminates the workers
    threading.Thread(target=_end_with_parent, daemon=True).start()
    snapshot()  # before any code is imported


def _end_with_parent() -> None:
    """Exit with the parent, however it ends."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
