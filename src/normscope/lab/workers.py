"""Who runs the trials: processes on this machine, or Ray's on many. The figures are the same."""

import multiprocessing
import os
import signal
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any, Protocol

from normscope.checks import check_positive
from normscope.errors import ConfigError
from normscope.lab.trial import Done, Trial, perform


class Workers(Protocol):
    """A number of hands."""

    count: int

    def start(self, trial: Trial) -> "Future[Done]": ...

    def close(self) -> None: ...


class Processes:
    """Processes of this machine, each on one core.

    Args:
        count: how many; None is one for each core.
        texts: where texts are found.
    """

    def __init__(self, count: int | None = None, texts: Path | None = None) -> None:
        self.count = cores() if count is None else count
        check_positive(workers=self.count)
        self._texts = texts
        # A forked process would inherit torch's threads in whatever state they are, so each starts anew.
        self._pool = ProcessPoolExecutor(self.count, multiprocessing.get_context("spawn"), _begin)

    def start(self, trial: Trial) -> "Future[Done]":
        return self._pool.submit(perform, trial, self._texts)

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
        if not ray.is_initialized():
            address = os.environ.get("RAY_ADDRESS")
            local: dict[str, Any] = {"num_cpus": count or cores(), "_node_ip_address": "127.0.0.1"}
            ray.init(address=address, include_dashboard=None if address else False, **({} if address else local))
        self._ray, self._texts = ray, texts
        self._perform = ray.remote(num_cpus=1)(perform)
        self.count = count or max(1, int(ray.cluster_resources().get("CPU", 1)))

    def start(self, trial: Trial) -> "Future[Done]":
        future: Future[Done] = self._perform.remote(trial, self._texts).future()
        return future

    def close(self) -> None:
        self._ray.shutdown()


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _begin() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one that the user sees, which then ends the rest
